"""Finds a model's config.json: a file, a directory, or the local hub cache. Never the network."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ws_guard.sizing import InputError

#: No config is larger; those with names of twenty thousand classes have a megabyte.
MOST_CONFIG_BYTES = 4 << 20
_MOST_REF_BYTES = 4_096


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
    return _read(path)


def read_cached_config(name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The config of a hub id in the hub's cache, and nowhere else; raises `InputError`.

    For an id that somebody else wrote: as a path it may be any file of this machine.
    """
    path = _cached(hub_cache(environ), name, "main")
    if path is None:
        raise InputError(f"model {name} is not in the hub cache {hub_cache(environ)}")
    return _read(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(_bytes_of(path, MOST_CONFIG_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a model's config: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a model's config: no JSON object; pass --heads")
    return config


def _bytes_of(path: Path, most: int) -> bytes:
    """What a small file holds; `ValueError` for what is none. The hub's cache has symlinks.

    Devices and pipes are neither opened nor waited for; files of the kernel have no size.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("no regular file")
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            raise ValueError("no regular file with anything in it")
        if found.st_size > most:
            raise ValueError(f"it has {found.st_size:,} bytes, more than the {most:,} of any")
        return opened.read(most)


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
        snapshot = _bytes_of(folder / "refs" / revision, _MOST_REF_BYTES).decode().strip()
    except (OSError, ValueError):
        snapshot = revision
    config = folder / "snapshots" / snapshot / "config.json"
    try:
        return config if config.is_file() else None
    except (OSError, ValueError):
        return None
