"""The step that a fault is of: vLLM's engine core puts down the tokens of a step that failed.

A log may hold such dumps of other failures, and of other starts. One belongs to a fault only where
it stands next to it: no start of an engine and no other failure lies between, or behind the dump.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from .lines import Line
from .wordings import Fault

#: What stands in every dump; without it nothing needs to be looked at.
DUMPED = b"total_num_scheduled_tokens"

_DUMP = re.compile(rf"\b{DUMPED.decode()}['\"]?\s*[=:]\s*(\d{{1,10}})\b")
_START = re.compile(
    r"API server version|Initializing an? .{0,20}LLM engine|non-default args|ServerArgs\("
    r"|\bvllm serve\b|launch_server|\b[Rr]estart"
)
#: What is raised because an engine died tells of no failure of its own.
_DEAD = re.compile(r"\bEngine(?:Dead|Generate)Error\b")
#: The message, of a line that was cut.
_CUT = re.compile(r"Buffer overflow when allocating memory for (\w.*)$")
_FAILURE = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b\s*(?::|$)|Buffer overflow when allocating"
    r"|Fatal Python error|Segmentation fault|CUDA error|Out of memory: Killed"
)
#: A dump's tokens, or what else a line is. Vague: nothing that another failure must have told.
_Mark = int | Literal["start", "vague", "same", "failure"]


def steps_of(
    fault: Fault, line: Line, above: Sequence[Line], below: Sequence[Line]
) -> Iterator[int]:
    """Tokens of the steps whose dump belongs to a fault, of those that stand around its line."""
    if str(fault.size) not in line.text:
        return  # the fault is told by a line beside this one
    # A dump above the error is of the process that raised it; a worker's error comes before.
    yield from _next_to(fault, reversed(above), lambda its: its.origin == line.origin)
    yield from _next_to(fault, below, lambda its: its.source == line.source)


def _next_to(fault: Fault, lines: Iterable[Line], is_its: Callable[[Line], bool]) -> Iterator[int]:
    marks = ((_mark(fault, line.text), line) for line in lines)
    marked = ((mark, line) for mark, line in marks if mark is not None)
    for mark, line in marked:
        if mark == "same":
            continue
        if isinstance(mark, int) and is_its(line):
            behind = next((each for each, _ in marked), None)
            # Of another failure behind it, or of two engines, it may as well be.
            if behind != "failure" and (not isinstance(behind, int) or behind == mark):
                yield mark
        return


def _mark(fault: Fault, text: str) -> _Mark | None:
    if dump := _DUMP.search(text):
        return int(dump[1])
    if _START.search(text):
        return "start"
    if fault.slab in text and f"size {fault.size} " in text:
        return "same"
    if _DEAD.search(text) or _may_be_its(fault, text):
        return "vague"
    return "failure" if _FAILURE.search(text) else None


def _may_be_its(fault: Fault, text: str) -> bool:
    """Whether a message was cut before it could be another one."""
    cut = _CUT.search(text)
    return cut is not None and f"{fault.slab} with size {fault.size}".startswith(cut[1].strip())
