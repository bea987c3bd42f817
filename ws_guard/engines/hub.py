"""Finds a model's config.json: a file, a directory, or the local hub cache. Never the network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ws_guard.sizing import InputError


def read_config(
    name: str, environ: Mapping[str, str], *, revision: str | None = None, cache: str | None = None
) -> dict[str, Any]:
    """The config of a model by directory, config.json or hub id; raises `InputError`.

    `cache` is the engine's own download directory, looked at before the hub's.
    """
    try:
        path = find_config(name, environ, revision=revision, cache=cache)
    except (OSError, RuntimeError) as error:
        raise InputError(f"model {name[:80]} is no path that can be looked at: {error}") from None
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a model's config: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a model's config: no JSON object; pass --heads")
    return config


def find_config(
    name: str, environ: Mapping[str, str], *, revision: str | None = None, cache: str | None = None
) -> Path:
    """The path of a model's config.json."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / "config.json").is_file():
            return path / "config.json"
        raise InputError(f"{name} holds no config.json: pass a directory with one, or --heads")
    roots = [Path(cache)] if cache else []
    roots.append(hub_cache(environ))
    for root in roots:
        found = _cached(root, name, revision or "main")
        if found is not None:
            return found
    raise InputError(
        f"model {name} is neither a path nor in the hub cache {roots[-1]}: "
        "pass --model DIRECTORY (or a config.json), or --heads"
    )


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The hub's cache directory by its own variables."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(variable):
            return Path(environ[variable]).expanduser()
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def _cached(root: Path, name: str, revision: str) -> Path | None:
    """A snapshot's config.json: `refs/<revision>` names the snapshot, or the revision itself."""
    folder = root / f"models--{name.replace('/', '--')}"
    try:
        snapshot = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        snapshot = revision
    config = folder / "snapshots" / snapshot / "config.json"
    return config if config.is_file() else None
