"""Reads flags the way the engines' parsers do, without them: only those that bear on sizes.

Both engines use argparse: `--flag value`, `--flag=value`, unambiguous beginnings; the last of a
repeated flag counts. vLLM takes underscores for dashes and `--json-flag.key value`.
`known_flags` has what else they take.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ws_guard.sizing import InputError

from .known_flags import KnownFlags

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")

#: Hyphens, dashes and the minus sign that stand where somebody has typed `-` or `--`.
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"

#: What to write where a number cannot be read.
WHOLE_NUMBER = "write a whole number"

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
    """`values` by field, words that belong to no flag, flags without a bearing, unknown ones."""

    values: dict[str, Any]
    positional: list[str]
    ignored: list[str]
    unknown: list[str]
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


def strict_json_object(text: str) -> dict[str, Any]:
    """A JSON object; `ValueError` for anything else, as where a backend's bare name stands."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


_JSON = (json_object, strict_json_object)


def read_flags(words: Sequence[str], flags: Sequence[Flag], known: KnownFlags) -> Read:
    """Read a command's words: the values of `flags`, and which others the engine has or has not."""
    for word in words:
        _refuse_dashes(word)
    table = {spelling: flag for flag in flags for spelling in flag.spellings}
    read = Read({}, [], [], [])
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            read.positional.append(word)
            continue
        name, equals, text = word.partition("=")
        name, path = _normal(name)
        whole = known.complete(name)
        flag = table.get(whole or name)
        if flag is None:
            (read.unknown if whole is None else read.ignored).append(name)
            if not equals:
                many = "*" if whole is None else known.values.get(whole, "0")
                behind = _drop_values(rest, many)
                read = read._replace(behind=behind or read.behind)
        elif flag.parse is None:
            read.values[flag.field] = flag.constant
        else:
            value = text if equals else _next(rest, name)
            _store(read.values, flag, name, path, value)
    return read


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not word[1].isdigit()


def _refuse_dashes(word: str) -> None:
    """What documents and chats make of `-` and `--` is no flag for anybody: it would be lost."""
    if word and word[0] in _DASHES:
        raise InputError(
            f"{word} of the launch command begins with U+{ord(word[0]):04X} instead of - or --: "
            "type the dashes anew"
        )


def _normal(name: str) -> tuple[str, list[str]]:
    """A flag's name with dashes, and the path behind its first dot (`--hf-overrides.key`)."""
    head, *path = name.split(".")
    return (head.replace("_", "-") if head.startswith("--") else head), path


def _next(rest: list[str], name: str) -> str:
    if not rest or (_is_flag(rest[0]) and rest[0] != "-1"):
        raise InputError(f"{name} of the launch command has no value")
    return rest.pop(0)


def _drop_values(rest: list[str], values: str) -> str | None:
    """Skip the values of a flag that is not read here: as many as it has, or up to the next flag.

    Of several the last is returned: it may be no value, but a word of the command.
    """
    most = {"0": 0, "1": 1, "?": 1}.get(values, len(rest))
    dropped: list[str] = []
    while rest and len(dropped) < most and not _is_flag(rest[0]):
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
        meant = "write a JSON object" if flag.parse in _JSON else WHOLE_NUMBER
        raise InputError(
            f"{shown} of the launch command: {text!r} cannot be read: {instead_of(text, meant)}"
        ) from None


def instead_of(text: str, meant: str) -> str:
    """What to write instead of a value that cannot be read: `meant`, or the variable's value."""
    if "$" in text and not text.lstrip().startswith("{"):
        return f"the shell did not fill in {text}: write its value"
    return meant


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
