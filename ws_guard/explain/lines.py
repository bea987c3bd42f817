"""Takes a line out of what wraps it: containers, journals, JSON, colours, prefixes of workers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

#: A message inside JSON inside JSON is as deep as it gets.
_MOST_WRAPS = 6
_MOST_DEPTH = 12
_LONGEST_NAME = 120

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"

#: `kubectl logs --prefix`, `docker compose logs`, `stern`.
_POD = re.compile(r"\[pod/([^\]\s]+)\]\s")
_COMPOSE = re.compile(r"([\w.-]{1,80})\s+\|\s")
#: The container runtime's own files: P marks a part of a longer line.
_CRI = re.compile(rf"{_STAMP} (stdout|stderr) ([FP])(?:\s|$)")
_TIME = re.compile(rf"{_STAMP}\s+")
#: journalctl and syslog: `Jul 05 12:00:01 host unit[123]: `.
_JOURNAL = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?P<host>\S{1,80}) [\w./@:-]{1,80}?"
    rf"(?:\[\d+\])?|{_STAMP} (?P<node>\S{{1,80}}) [\w./@:-]{{1,80}}?\[\d+\]): ?"
)
_EXPORT = re.compile(r"MESSAGE=")
#: JSON keys whose value names where a line comes from, the best first.
_SOURCES = ("pod_name", "pod", "container_name", "container", "_HOSTNAME", "hostname", "host")
_MESSAGES = ("log", "message", "msg", "MESSAGE", "text", "body", "content", "event")

#: Prefixes of workers: vLLM `(Worker_TP3_DCP3 pid=9)`, Ray `(W pid=9, ip=1.2.3.4)`.
_PROCESS = re.compile(
    r"\(([A-Za-z][\w.:-]{0,60})((?: rank=\d+)?)( pid=\d+)?(?:, ip=[\d.a-f:]+)?\)\s?"
)
#: SGLang: `[2025-11-20 16:40:55 DP1 TP3]`.
_SGLANG = re.compile(rf"\[(?:{_STAMP}|\d\d:\d\d:\d\d)((?: [A-Z]{{2,4}}\d{{1,5}})+)\]\s?")
_SGLANG_PLAIN = re.compile(rf"\[{_STAMP}\]\s?")
#: torch, torchrun, mpirun.
_RANK = re.compile(r"\[(?:[Rr]ank ?|default)(\d{1,6})\]:?\s?|\[\d+,(\d{1,6})\]\s?<std\w+>:?\s?")
_LEVEL = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(?:\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?\s+"
    r"(?:\[[^\]\s]{1,120}\]|\S{1,80}:\d+\])\s?"
)
#: Processes that repeat what a worker met.
_SUPERVISORS = ("EngineCore", "APIServer", "VLLM", "MainProcess")


class Line(NamedTuple):
    """A line without its wraps. `source` is the pod or host, `rank` the worker; "" where unsaid.

    `partial`: the next line of the same source and stream goes on without a break.
    """

    source: str
    rank: str
    text: str
    stream: str = ""
    partial: bool = False

    @property
    def origin(self) -> tuple[str, str]:
        """Whose line it is."""
        return self.source, self.rank


def is_supervisor(rank: str) -> bool:
    """Whether a rank is a process that only tells of its workers."""
    return rank.startswith(_SUPERVISORS)


def blanked(text: str) -> str:
    """A text with spaces in the place of its colours: what stands where stays there."""
    return _ANSI.sub(lambda match: " " * len(match[0]), text)


def unwrap(raw: str) -> Line:
    """A line as its process wrote it, or the part of one that a runtime cut it into."""
    line = Line("", "", _ANSI.sub("", raw).strip("\r\n\x00\ufeff"))
    for _ in range(_MOST_WRAPS):
        inner = _peel(line)
        if inner == line:
            break
        line = inner
    return line


def parts_of_lines(lines: Iterable[Line]) -> list[list[Line]]:
    """The parts of each line, in the order in which the lines begin.

    Between the parts of a line stand those of other sources and of its source's other stream.
    """
    every: list[list[Line]] = []
    unfinished: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        place = line.source, line.stream
        parts = unfinished.pop(place, None)
        if parts is None:
            every.append(parts := [])
        parts.append(line)
        if line.partial:
            unfinished[place] = parts
    return every


def whole_line(parts: Sequence[Line]) -> Line:
    """A line of its parts: the first of them has the prefixes."""
    text = "".join(part.text for part in parts)
    return parts[0]._replace(text=text, partial=parts[-1].partial)


def whole_lines(lines: Iterable[Line]) -> list[Line]:
    """Lines with those that are parts of one put together."""
    return [whole_line(parts) for parts in parts_of_lines(lines)]


def _peel(line: Line) -> Line:
    """One wrap less; the line itself where none is left."""
    text = line.text.lstrip()
    if text.startswith("{") and (told := _from_json(text)) is not None:
        return told._replace(
            source=told.source or line.source,
            rank=line.rank,
            text=_ANSI.sub("", told.text),
            stream=told.stream or line.stream,
            partial=told.partial or line.partial,
        )
    for pattern, tell in _PREFIXES:
        if match := pattern.match(text):
            return tell(line, match)._replace(text=text[match.end() :])
    return line


def _pod(name: str) -> str:
    """`vllm-0` of `vllm-0/engine`: containers of one pod share its ranks."""
    return name.partition("/")[0]


def _part(line: Line, match: re.Match[str]) -> Line:
    return line._replace(stream=match[1], partial=line.partial or match[2] == "P")


def _host(line: Line, match: re.Match[str]) -> str:
    """A pod is nearer to the ranks than the host it runs on."""
    return line.source or match["host"] or match["node"]


def _process(match: re.Match[str]) -> str:
    name, rank, pid = match[1], match[2] or "", match[3] or ""
    # A name without a number is shared by every worker: then the process tells them apart.
    tell_apart = not rank and not any(c.isdigit() for c in name) and not is_supervisor(name)
    return name + rank + (pid if tell_apart else "")


#: Prefixes in the order in which they are looked for, and what each tells of its line.
_PREFIXES: tuple[tuple[re.Pattern[str], Callable[[Line, re.Match[str]], Line]], ...] = (
    (_POD, lambda line, match: line._replace(source=_pod(match[1]))),
    (_COMPOSE, lambda line, match: line._replace(source=match[1])),
    (_CRI, _part),
    (_PROCESS, lambda line, match: line._replace(rank=_process(match))),
    (_SGLANG, lambda line, match: line._replace(rank=match[1].strip())),
    (_RANK, lambda line, match: line._replace(rank=f"rank {match[1] or match[2]}")),
    (_JOURNAL, lambda line, match: line._replace(source=_host(line, match))),
    *((pattern, lambda line, _match: line) for pattern in (_LEVEL, _EXPORT, _SGLANG_PLAIN, _TIME)),
)


# -- JSON -----------------------------------------------------------------------------------------


def _from_json(text: str) -> Line | None:
    """What a JSON line tells; None where it is none."""
    if not text.rstrip().endswith("}"):
        return None
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    source = next((name for key in _SOURCES if (name := _find(told, key))), "")
    strings = list(_strings(told))
    messages = (_spoken(told.get(key)) for key in _MESSAGES)
    message = next((each for each in messages if each is not None), None)
    if message is None:
        return Line(source, "", "\n".join([*strings, *_numbers(told)]))
    if len(strings) == 1 or "log" in told:
        # Docker: a line that goes on has no line break at its end.
        stream = told.get("stream") if isinstance(told.get("log"), str) else None
        partial = stream is not None and message[-1:] != "\n"
        name = stream if isinstance(stream, str) else ""
        return Line(source, "", message.rstrip("\n"), name[:_LONGEST_NAME], partial)
    others = [each for each in strings if each != message]
    return Line(source, "", "\n".join([message, *others, *_numbers(told)]))


def _find(told: dict[str, object], key: str, depth: int = 3) -> str:
    value = told.get(key)
    if isinstance(value, str):
        return value[:_LONGEST_NAME]
    inner = (each for each in told.values() if isinstance(each, dict) and depth)
    return next((name for each in inner if (name := _find(each, key, depth - 1))), "")


def _spoken(value: object) -> str | None:
    """A string; journald writes a message with colours as a list of its bytes."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or any(type(each) is not int for each in value):
        return None
    return bytes(value).decode(errors="replace") if all(0 <= n < 256 for n in value) else None


def _strings(value: object, depth: int = _MOST_DEPTH) -> Iterator[str]:
    """Every string in a JSON value."""
    spoken = _spoken(value)
    if spoken is not None:
        yield spoken
    elif isinstance(value, (dict, list)) and depth:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each, depth - 1)


def _numbers(value: object, depth: int = _MOST_DEPTH) -> Iterator[str]:
    """Every whole number in a JSON value with its key: a model's config is such a line."""
    if isinstance(value, dict):
        yield from (f'"{key}": {each}' for key, each in value.items() if type(each) is int)
    if isinstance(value, (dict, list)) and depth:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each, depth - 1)
