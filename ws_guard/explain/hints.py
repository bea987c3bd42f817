"""What a log tells beside its faults: flags, versions, GPU, the model's heads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ws_guard.engines.command import parse_command
from ws_guard.engines.command_flags import FLAGS
from ws_guard.engines.flags import read_flags
from ws_guard.engines.known_flags import known_flags
from ws_guard.engines.variables import CONSTANTS, meant_variable
from ws_guard.sizing import InputError

from . import devices
from . import hint_words as words


class Hint(NamedTuple):
    """One thing told: `field` and value, and how sure its wording is (a higher one wins)."""

    field: str
    value: Any
    weight: int = 1


Reader = Callable[[str, int], list[Hint]]
#: Characters before and behind a needle that its reader looks at.
BEFORE, BEHIND = 64, 2048


def _number(name: str) -> Reader:
    def read(text: str, at: int) -> list[Hint]:
        before = text[at - 1] if at else " "
        match = words.VALUE.match(text, at + len(name))
        if match is None or before.isalnum() or before == "_":
            return []
        value = int(match[1].replace(",", "")) * (1000 if match[2] else 1)
        hints = [Hint(words.FIELD_OF[name], value, 2)] if value else []
        if hints and name in words.ENGINE_NAMES:
            hints.append(Hint("engine", words.ENGINE_NAMES[name]))
        return hints

    return read


def _version(engine: str) -> Callable[[re.Match[str]], list[Hint]]:
    def make(match: re.Match[str]) -> list[Hint]:
        hints = [Hint(f"{engine}_version", match[1].rstrip(".,"))]
        return hints if engine == "flashinfer" else [*hints, Hint("engine", engine, 2)]

    return make


def _utilization(text: str, at: int) -> list[Hint]:
    match = words.FRACTION.match(text, at + len("gpu_memory_utilization"))
    return [Hint("utilization", float(match[1]))] if match else []


def _command(text: str, at: int) -> list[Hint]:
    """Flags of a launch command that the log shows."""
    try:
        command = parse_command(shlex.split(_typed(text[at:]), comments=True))
        read = read_flags(command.words, FLAGS[command.engine], known_flags(command.engine))
    except (InputError, ValueError):
        return []
    hints = [Hint("engine", command.engine, 3)]
    model = read.values.get("model") or next(iter(read.positional), None)
    if isinstance(model, str):
        hints.append(Hint("model", model))
    if any(word.startswith("-") for word in command.words):
        hints.append(Hint("complete", True))
    speculative = read.values.get("speculative_config") or {}
    drafted = speculative.get("num_speculative_tokens", read.values.get("drafted"))
    if type(drafted) is int and 0 < drafted < 1 << 16:
        hints.append(Hint("draft_tokens", drafted, 2))
    return hints


def _typed(text: str) -> str:
    """The command that a text begins with, its continued lines included, up to the next one."""
    typed = ""
    for line in text.split("\n"):
        typed += line.rstrip("\r\\ ") + " "
        if not line.rstrip("\r ").endswith("\\"):
            break
    return typed.split(" && ")[0]


def _always(hint: Hint) -> Callable[[re.Match[str]], list[Hint]]:
    return lambda _match: [hint]


def _told(hint: Hint) -> Reader:
    return lambda _text, _at: [hint]


def _spoken_dims(match: re.Match[str]) -> list[Hint]:
    fields = ("heads", "kv_heads", "head_dim")
    return [Hint(field, int(text)) for field, text in zip(fields, match.groups(), strict=True)]


def _variable(text: str, at: int) -> list[Hint]:
    """A variable that is none of an engine's, but named like one."""
    name = next((each[0] for each in words.VARIABLE.finditer(text, max(0, at - 32), at + 96)), "")
    meant = None if name in CONSTANTS else meant_variable(name)
    if meant is None:
        return []
    told = f"{name} is no variable of an engine that is known here: did you mean {meant}?"
    return [Hint("misspelt", told)]


def _gpu(text: str, at: int) -> list[Hint]:
    name = devices.gpu_in(text[max(0, at - 16) : at + 24])
    return [Hint("gpu", name)] if name else []


def _number_readers() -> Iterator[tuple[bytes, Reader]]:
    """Readers of fields with a number behind their name."""
    for name in words.FIELD_OF:
        yield name.encode(), _number(name)
    short = _pattern_at(words.SHORT_VALUE, lambda match: [Hint(match[1], int(match[2]))], back=2)
    yield from ((f"{name}{mark}".encode(), short) for name in words.SHORT for mark in "= ")
    heads = _pattern_at(words.SPOKEN_HEADS, lambda match: [Hint("heads", int(match[1]))], back=20)
    yield b" heads", heads
    yield b"D=", _pattern_at(words.SPOKEN_DIMS, _spoken_dims, back=32)
    yield from ((needle, _utilization) for needle in words.UTILIZATION_NEEDLES)


def _word_readers() -> Iterator[tuple[bytes, Reader]]:
    """Readers of names: engines and versions, GPU, backends, models, switches."""
    for engine, needle, pattern in words.VERSIONS:
        yield needle, _pattern_at(pattern, _version(engine), back=16)
    for engine, needle, weight in words.ENGINE_WORDS:
        yield needle, _told(Hint("engine", engine, weight))
    yield from ((needle, _told(Hint("complete", True))) for needle in words.COMPLETE)
    yield from ((needle, _gpu) for needle in devices.NEEDLES)
    backend = _pattern_at(words.BACKEND, lambda match: [Hint("backend", match[1].upper())], back=48)
    yield from ((needle, backend) for needle in words.BACKEND_NEEDLES)
    yield from ((needle, _variable) for needle in words.VARIABLE_NEEDLES)
    model = _pattern_at(words.MODEL, lambda match: [Hint("model", match[1])], back=2)
    yield from ((needle, model) for needle in words.MODEL_NEEDLES)
    yield from ((needle, _command) for needle in words.COMMAND_NEEDLES)
    for field, needle, pattern in words.SWITCHES:
        yield needle, _pattern_at(pattern, _always(Hint(field, True)), back=8)


def _readers() -> dict[bytes, list[Reader]]:
    readers: dict[bytes, list[Reader]] = {}
    for needle, reader in (*_number_readers(), *_word_readers()):
        readers.setdefault(needle, []).append(reader)
    return readers


def _pattern_at(
    pattern: re.Pattern[str], make: Callable[[re.Match[str]], list[Hint]], back: int = 6
) -> Reader:
    """A reader that looks for a pattern from a little before the needle on."""

    def read(text: str, at: int) -> list[Hint]:
        match = pattern.search(text, max(0, at - back), at + 200)
        return make(match) if match else []

    return read


READERS: dict[bytes, list[Reader]] = _readers()
#: How many of each word are looked at in one stretch of a log: a word of every traceback line tells
#: nothing new after the first.
NEEDLES: dict[bytes, int] = {
    **dict.fromkeys(READERS, 500),
    **{needle: 1 for _, needle, weight in words.ENGINE_WORDS if weight},
}
#: Bytes of the longest of these words.
LONGEST = max(map(len, NEEDLES))


def hints_at(text: str, at: int, needle: bytes) -> list[Hint]:
    """What a text tells where a needle stands at `at`."""
    return [hint for reader in READERS[needle] for hint in reader(text, at)]
