"""Every wording in which a workspace that is too small ends a process, as data, and its numbers.

Sources: `allocator.h` of FlashInfer until July 2024 ("Out of workspace memory"), until July 2025
("Failed to allocate memory"), and since ("Buffer overflow"); its counter checks (0.6.15 on); vLLM's
`v1/worker/workspace.py`; torch's allocator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ws_guard.sizing import EXTERNAL_COUNTER

Kind = Literal["overflow", "counter", "locked", "out_of_memory"]

#: Bytes that stand in every wording. Two lie far apart in the longest one, so that a line that was
#: cut in the middle of one still has the other.
NEEDLES: tuple[bytes, ...] = (
    b" and alignment",
    b"AlignedAllo",
    b"Out of workspace memory",
    b"kv_counter",
    b"Workspace is locked but allocation",
    b"CUDA out of memory",
    # Of a line that was cut before the first of the above.
    b"aligned_alloc' at ",
    b"allocating memory for ",
)

#: No number of a real message is longer; Python would refuse to read one of thousands of digits.
_NUMBER = r"(\d{1,20})"
_MIB = 1 << 20
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "bytes": 1, "B": 1}


class Fault(NamedTuple):
    """One message; sizes in bytes, None where the wording tells none.

    `line` is the line of `allocator.h`, all that tells layout B from C. `old` marks the wordings
    of FlashInfer before August 2025. `caller` is who asked vLLM's workspace manager; `total` the
    memory of the GPU.
    """

    kind: Kind
    slab: str
    size: int | None
    available: int | None
    line: int | None = None
    old: bool = False
    caller: str = ""
    total: int | None = None


def _words(text: str) -> str:
    """A pattern in which any white space stands for a space: messages get wrapped."""
    return text.replace(" ", r"\s+")


_OVERFLOW = re.compile(
    _words(r"(?P<new>Buffer overflow when allocating|to allocate) memory for ")
    + _words(r"(?P<slab>[A-Za-z_]\w{0,80}) with size (?P<size>\d{1,20}) and alignment \d{1,20}")
    + r"(?:\s*,\s+"
    + _words(r"but only (?P<available>\d{1,20}) bytes available")
    + ")?"
)
#: Stands before the message: `... at /x/include/flashinfer/allocator.h:49: `.
_LINE = re.compile(r"allocator\.h\s*:\s*(\d{1,6})\b[^A-Za-z]{0,40}$")
_LINE_CHARS = 120
_UNNAMED = re.compile(_words("Out of workspace memory"))
_COUNTER = re.compile(
    _words(rf"kv_counter_buffer is too small: got {_NUMBER} bytes, need {_NUMBER} bytes")
)
_COUNTER_CHECK = re.compile(r"multi_ctas_kv_counter_size\)\s*>=\s*counter_bytes\)\s+is\s+false")
_LOCKED = re.compile(
    _words(r"Workspace is locked but allocation (?:from|for) '([^']{0,200})'")
    + r"(?:\s+"
    + _words(r"requires (\d{1,12}\.\d\d) MB, current size is (\d{1,12}\.\d\d) MB")
    + ")?"
)
_AMOUNT = r"(\d{1,12}(?:\.\d{1,6})?) (KiB|MiB|GiB|TiB|bytes|B)"
_MEMORY = re.compile(
    _words(rf"CUDA out of memory\. Tried to allocate {_AMOUNT}\b") + r"(?P<behind>.{0,400})",
    re.DOTALL,
)
_TOTAL = re.compile(_words(rf"total capacity of {_AMOUNT}") + "|" + rf"{_AMOUNT}\s+total capacity")
_FREE = re.compile(_words(rf"(?:of which )?{_AMOUNT} (?:is )?free"))


_BEGUN = re.compile(
    r"Error in function 'aligned_alloc' at \S|Buffer overflow when allocating memory for [A-Za-z_]"
)


def is_begun(text: str) -> bool:
    """Whether a message begins in a text that tells no fault: it was cut."""
    return _BEGUN.search(text) is not None


def faults_in(text: str) -> Iterator[Fault]:
    """Every message in a text."""
    named = False
    for match in _OVERFLOW.finditer(text):
        named = True
        yield _overflow(match)
    if not named and _UNNAMED.search(text):
        yield Fault("overflow", "", None, None, old=True)
    for match in _COUNTER.finditer(text):
        yield Fault("counter", EXTERNAL_COUNTER, int(match[2]), int(match[1]))
    if _COUNTER_CHECK.search(text):
        yield Fault("counter", EXTERNAL_COUNTER, None, None)
    for match in _LOCKED.finditer(text):
        size, current = (None if part is None else _mib(part) for part in match.group(2, 3))
        yield Fault("locked", "workspace manager", size, current, caller=match[1])
    for match in _MEMORY.finditer(text):
        yield _out_of_memory(match)


def _overflow(match: re.Match[str]) -> Fault:
    before = match.string[max(0, match.start() - _LINE_CHARS) : match.start()]
    line, available = _LINE.search(before), match["available"]
    return Fault(
        kind="overflow",
        slab=match["slab"],
        size=int(match["size"]),
        available=None if available is None else int(available),
        line=None if line is None else int(line[1]),
        old=not match["new"].startswith("Buffer"),
    )


def _out_of_memory(match: re.Match[str]) -> Fault:
    behind = match["behind"]
    total, free = _TOTAL.search(behind), _FREE.search(behind)
    return Fault(
        kind="out_of_memory",
        slab="workspace",
        size=_amount(match[1], match[2]),
        available=_amount(free[1], free[2]) if free else None,
        total=_amount(total[1] or total[3], total[2] or total[4]) if total else None,
    )


def _mib(text: str) -> int:
    """Bytes of MiB with two decimals, as vLLM writes "MB"; rounded down to a byte."""
    whole, _, hundredths = text.partition(".")
    return (int(whole) * 100 + int(hundredths)) * _MIB // 100


def _amount(number: str, unit: str) -> int:
    whole, _, fraction = number.partition(".")
    return int(whole + fraction) * _UNITS[unit] // int(10 ** len(fraction))
