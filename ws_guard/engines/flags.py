"""Reads flags the way the engines' parsers do, without them: only those that bear on sizes.

Both engines use argparse: `--flag value`, `--flag=value`, unambiguous beginnings; the last of a
repeated flag counts. vLLM takes underscores for dashes and `--json-flag.key value`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ws_guard.sizing import InputError

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
# A beginning shorter than this could stand for too many flags of the engine.
_SHORTEST_BEGINNING = 8

Parser = Callable[[str], Any]


class Flag(NamedTuple):
    """A flag that bears on sizes: its spellings, the field it fills, how its value is read.

    `constant` is the value of a flag that takes none.
    """

    spellings: tuple[str, ...]
    field: str
    parse: Parser | None = None
    constant: Any = None


class Read(NamedTuple):
    """`values` by field, words that belong to no flag, and flags without a bearing."""

    values: dict[str, Any]
    positional: list[str]
    ignored: list[str]
    #: The last word behind an unknown flag that had several: a value, or the command's own.
    behind: str | None = None


def whole_number(text: str) -> int:
    """A plain whole number."""
    return int(text.strip())


def human_number(text: str) -> int:
    """`16384`, `16k` (16,000), `16K` (16,384), `25.6k`: the engines' human-readable numbers."""
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        return int(text.strip())
    number, unit = match.groups()
    if unit in _DECIMAL:
        return int(float(number) * _DECIMAL[unit])
    return int(number) * _BINARY[unit]


def human_number_or_auto(text: str) -> int:
    """The same; `auto` and -1 are 0: left to the engine."""
    return 0 if text.strip().lower() in ("auto", "-1") else human_number(text)


def json_object(text: str) -> dict[str, Any]:
    """A JSON object; a bare word (some flags take a method's name) is empty."""
    if not text.lstrip().startswith("{"):
        return {}
    value = json.loads(text)
    return value if isinstance(value, dict) else {}


def read_flags(
    words: Sequence[str], flags: Sequence[Flag], switches: frozenset[str] = frozenset()
) -> Read:
    """Read a command's words; `switches` are flags without a bearing that take no value."""
    table = {spelling: flag for flag in flags for spelling in flag.spellings}
    values: dict[str, Any] = {}
    positional: list[str] = []
    ignored: list[str] = []
    behind: str | None = None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            positional.append(word)
            continue
        name, equals, text = word.partition("=")
        name, path = _normal(name)
        flag = _find(name, table)
        if flag is None:
            ignored.append(name)
            if not equals and name not in switches:
                behind = _drop_values(rest) or behind
        elif flag.parse is None:
            values[flag.field] = flag.constant
        else:
            value = text if equals else _next(rest, name)
            _store(values, flag, name, path, value)
    return Read(values, positional, ignored, behind)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not word[1].isdigit()


def _normal(name: str) -> tuple[str, list[str]]:
    """A flag's name with dashes, and the path behind its first dot (`--hf-overrides.key`)."""
    head, *path = name.split(".")
    return (head.replace("_", "-") if head.startswith("--") else head), path


def _find(name: str, table: dict[str, Flag]) -> Flag | None:
    if name in table or not name.startswith("--") or len(name) < _SHORTEST_BEGINNING:
        return table.get(name)
    hits = {flag for spelling, flag in table.items() if spelling.startswith(name)}
    return hits.pop() if len(hits) == 1 else None


def _next(rest: list[str], name: str) -> str:
    if not rest or (_is_flag(rest[0]) and rest[0] != "-1"):
        raise InputError(f"{name} of the launch command has no value")
    return rest.pop(0)


def _drop_values(rest: list[str]) -> str | None:
    """Skip the values of a flag that is not known here: up to the next flag.

    Of several the last is returned: it may be no value, but a word of the command.
    """
    dropped = []
    while rest and not _is_flag(rest[0]):
        dropped.append(rest.pop(0))
    return dropped[-1] if len(dropped) > 1 else None


def _store(values: dict[str, Any], flag: Flag, name: str, path: list[str], text: str) -> None:
    try:
        if path:
            values[flag.field] = _nest(values.get(flag.field) or {}, path, _scalar(text))
        else:
            assert flag.parse is not None  # noqa: S101 - read_flags looked
            values[flag.field] = flag.parse(text)
    except ValueError:
        shown = ".".join([name, *path])
        raise InputError(f"{shown} of the launch command: {text!r} cannot be read") from None


def _nest(base: dict[str, Any], path: list[str], value: object) -> dict[str, Any]:
    key, *below = path
    key = key.removesuffix("+")
    inner = base.get(key)
    nested = _nest(inner if isinstance(inner, dict) else {}, below, value) if below else value
    return {**base, key: nested}


def _scalar(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return human_number(text)
    except ValueError:
        return text
