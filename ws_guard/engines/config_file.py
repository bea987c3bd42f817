"""`--config FILE.yaml` of a launch command, as the words that the engines make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ws_guard.sizing import InputError

from .flags import instead_of


def config_words(path: str) -> list[str]:
    """The file's keys as flags: mappings as JSON, lists as several words, false left out."""
    config = _read_yaml(path)
    words: list[str] = []
    for key, value in config.items():
        if value is None:
            continue
        if isinstance(value, bool):
            words += [f"--{key}"] if value else [f"--no-{key}"]
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)] if value else []
        else:
            text = json.dumps(value, default=str) if isinstance(value, dict) else str(value)
            # One word: a value such as -1 would look like a flag of its own.
            words.append(f"--{key}={text}")
    return words


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise InputError("--config needs PyYAML: pip install 'ws-guard[exporter]'") from None
    try:
        config = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        wrong = f"--config {path} of the launch command: {error.strerror or error}"
        raise InputError(f"{wrong}: {instead_of(path, 'pass a YAML file')}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"--config {path} of the launch command: {error}") from None
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise InputError(f"--config {path} of the launch command holds no mapping")
    return {str(key): value for key, value in config.items()}
