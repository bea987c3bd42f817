"""Settings from the environment, read the same way by workers, exporter and command line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

DEFAULT_LISTEN = "127.0.0.1:19456"
SIZING_MODES = ("auto", "off")
ON_OVERFLOW_ACTIONS = ("observe", "raise", "split")

_PREFIX = "WS_GUARD_"

_UNITS: dict[str, int] = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}ib"] = 1 << (10 * _power)
    _UNITS[f"{_letter}b"] = int(1000**_power)


class Settings(NamedTuple):
    """Every setting with its default. Sizes in bytes."""

    enabled: bool
    board: str
    board_group: str | None
    trusted_uids: tuple[int, ...]
    sizing: str
    on_overflow: str
    zone_interval_seconds: float
    listen: str
    expected_workers: int | None
    min_margin_bytes: int
    strict: bool
    tls_cert: str | None
    tls_key: str | None
    basic_auth_file: str | None
    basic_auth_probes: bool


class SettingError(ValueError):
    """A setting with a value that it cannot have; the text names the allowed ones."""


def default_board() -> str:
    """The private board of this user."""
    return f"/dev/shm/ws_guard-{os.getuid()}"  # noqa: S108 - made 0700, its owner is checked


def parse_size(text: str) -> int:
    """Bytes from `413138944`, `394MiB` or `1.5 GiB`; raises ValueError otherwise."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower().replace("_", ""))
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write bytes or e.g. 394MiB, 1.5GiB")
    number, unit = match[1], _UNITS[match[2]]
    whole, _, fraction = number.partition(".")
    size, rest = divmod(int(whole + fraction) * unit, int(10 ** len(fraction)))
    if rest:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return size


def parse_listen(text: str) -> tuple[list[str], int]:
    """Hosts and port from `host:port`; `*` stands for all interfaces of both families."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port, e.g. {DEFAULT_LISTEN} or *:19456")
    if host == "*":
        return ["0.0.0.0", "::"], int(port)  # noqa: S104 - asked for by name
    return [host.removeprefix("[").removesuffix("]")], int(port)


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("use 1 or 0")


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"use {' or '.join(allowed)}")
        return text

    return parse


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("use a whole number from 1 up")
    return int(text)


def _seconds(text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII) is None or not 0.01 <= float(text) <= 3600:
        raise ValueError("use seconds from 0.01 to 3600")
    return float(text)


def _uids(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError("use numeric user ids separated by commas")
    return tuple(int(part) for part in parts)


def _listen(text: str) -> str:
    parse_listen(text)
    return text


_Parser = Callable[[str], Any]
#: In quotes, a unit or a manifest no shell has seen a `~`.
_path = os.path.expanduser

#: Setting name -> (field, parser, default). The one place where settings are declared.
DECLARED: dict[str, tuple[str, _Parser, Any]] = {
    "WS_GUARD_ENABLED": ("enabled", _flag, True),
    "WS_GUARD_BOARD": ("board", _path, None),
    "WS_GUARD_BOARD_GROUP": ("board_group", str, None),
    "WS_GUARD_TRUSTED_UIDS": ("trusted_uids", _uids, ()),
    "WS_GUARD_SIZING": ("sizing", _one_of(*SIZING_MODES), "auto"),
    "WS_GUARD_ON_OVERFLOW": ("on_overflow", _one_of(*ON_OVERFLOW_ACTIONS), "observe"),
    "WS_GUARD_ZONE_INTERVAL": ("zone_interval_seconds", _seconds, 1.0),
    "WS_GUARD_LISTEN": ("listen", _listen, DEFAULT_LISTEN),
    "WS_GUARD_EXPECTED_WORKERS": ("expected_workers", _count, None),
    "WS_GUARD_MIN_MARGIN_BYTES": ("min_margin_bytes", parse_size, 0),
    "WS_GUARD_STRICT": ("strict", _flag, False),
    "WS_GUARD_TLS_CERT": ("tls_cert", _path, None),
    "WS_GUARD_TLS_KEY": ("tls_key", _path, None),
    "WS_GUARD_BASIC_AUTH_FILE": ("basic_auth_file", _path, None),
    "WS_GUARD_BASIC_AUTH_PROBES": ("basic_auth_probes", _flag, False),
}


def read_settings(environ: Mapping[str, str] | None = None) -> tuple[Settings, list[str]]:
    """The settings, with defaults in place of bad values, and one line for each bad value.

    Misspelt settings have a line as well. An empty value counts as not set: manifests often pass
    one. The lines leave the value out: a worker's are read by whoever can ask the exporter.
    """
    settings, problems = _read(environ)
    lines = [
        f"{name} has a value that is not allowed: {why}; the default is used"
        for name, _, why in problems
    ]
    return settings, [*lines, *misspelt_settings(environ)]


def misspelt_settings(environ: Mapping[str, str] | None = None) -> list[str]:
    """One line for each variable that looks like a misspelt setting.

    Others may begin with WS_GUARD_ as well: Kubernetes makes some for a Service named ws-guard.
    """
    lines = []
    for name in sorted(os.environ if environ is None else environ):
        if name in DECLARED or not name.upper().startswith("WS"):
            continue
        from difflib import get_close_matches  # of no use to most workers

        # Of a right beginning only the rest is compared: it is most of what they have in common.
        known = {each.removeprefix(_PREFIX): each for each in DECLARED}
        if name.startswith(_PREFIX):
            nearest = get_close_matches(name.removeprefix(_PREFIX), known, n=1, cutoff=0.7)
        else:
            nearest = get_close_matches(name.upper(), DECLARED, n=1, cutoff=0.9)
        if nearest:
            meant = known.get(nearest[0], nearest[0])
            lines.append(f"{name} is no setting: did you mean {meant}?")
    return lines


def _read(environ: Mapping[str, str] | None) -> tuple[Settings, list[tuple[str, str, str]]]:
    """The settings, and (name, value, why) of each bad value; the value is not in the why."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    problems = []
    for name, (field, parse, default) in DECLARED.items():
        values[field] = default
        text = environ.get(name, "").strip()
        if not text:
            continue
        try:
            values[field] = parse(text)
        except ValueError as error:
            problems.append((name, text, str(error).replace(repr(text), "it")))
    values["board"] = values["board"] or default_board()
    return Settings(**values), problems


def require_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings, or a `SettingError` with the first bad value: for CLI and exporter."""
    settings, problems = _read(environ)
    if problems:
        name, text, why = problems[0]
        raise SettingError(f"{name}={text!r} is not allowed: {why}")
    return settings
