"""A worker's own account of the native calls that it made, kept beside ws_guard and without it.

A file of 64-bit words, mapped by the worker and by whoever wants to know: what was written before a
SIGKILL is there after it. Every number stands twice. The first is counted up before the call is
made and the second once it is over, so that a worker that is killed leaves what it was doing
between the two: one call, or one replay of a graph, and nothing else. The same file carries the
orders that a worker is given.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from ws_guard.sizing import OPS

if TYPE_CHECKING:
    from pathlib import Path

#: As docs/METRICS.md has them; written down here a second time on purpose.
BOUNDS = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536)
MODES = ("eager", "captured", "replayed", "tuning")
ACTIONS = ("observed", "raised", "split")
NAMES = tuple(OPS.values())

_LE = (*(f"{float(bound)}" for bound in BOUNDS), "+Inf")
_BUCKETS = len(_LE)
_SUM = len(MODES) * _BUCKETS
_EVENTS = _SUM + 1
_OP_WORDS = _EVENTS + len(ACTIONS)
_WORDS = _OP_WORDS * len(NAMES)


class Header(IntEnum):
    """The first words: who it is, what it was told and does, and what it did not expect."""

    PID = 0
    ORDER = 1
    STATE = 2
    SURPRISES = 3
    LAST_RAISED_NS = 4
    LATE_MS = 5
    AT_WORK = 6


class Order(IntEnum):
    """What a worker is told: call on, make no more calls, exit in good order."""

    CALL = 0
    STOP = 1
    EXIT = 2


class State(IntEnum):
    """What a worker does."""

    STARTING = 0
    CALLING = 1
    STOPPED = 2


BEGUN = len(Header)
DONE = BEGUN + _WORDS
_SIZE = 8 * (DONE + _WORDS)

#: A series of the exporter, less engine and rank: (name, op, the value of its own label).
Series = tuple[str, str, str]


class Bounds(NamedTuple):
    """What a number is at least and at most."""

    least: int
    most: int

    def hold(self, value: float) -> bool:
        """Whether a value is one of those."""
        return self.least <= value <= self.most


class Book:
    """The mapped file. `words` are `Header`, then numbers begun, then the same numbers done."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(_SIZE)
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        self.words = memoryview(self._memory).cast("Q")

    def doubt(self) -> int:
        """Native calls that were begun and not seen to end."""
        cells = [_cell(op, mode, b) for op in NAMES for mode in MODES for b in range(_BUCKETS)]
        return sum(self.words[BEGUN + at] - self.words[DONE + at] for at in cells)

    def calls(self, *modes: str) -> int:
        """Native calls of these modes that were done."""
        cells = [_cell(op, mode, b) for op in NAMES for mode in modes for b in range(_BUCKETS)]
        return sum(self.words[DONE + at] for at in cells)

    @property
    def late_ms(self) -> int:
        """How far behind its rate the worker was at most."""
        return self.words[Header.LATE_MS]

    def events(self, action: str) -> int:
        """Overflows that were observed, raised or split."""
        return sum(self.words[DONE + event_cell(op, action)] for op in NAMES)

    def account(self) -> dict[Series, Bounds]:
        """What the exporter has to tell of this worker."""
        told: dict[Series, Bounds] = {}
        for op in NAMES:
            for mode in MODES:
                cells = [_cell(op, mode, bucket) for bucket in range(_BUCKETS)]
                told["native_calls_total", op, mode] = self._bounds(cells)
            for number, le in enumerate(_LE):
                below = range(number + 1)
                cells = [_cell(op, mode, b) for mode in ("eager", "replayed") for b in below]
                told["batch_size_bucket", op, le] = self._bounds(cells)
            told["batch_size_count", op, ""] = told["batch_size_bucket", op, "+Inf"]
            told["batch_size_sum", op, ""] = self._bounds([sum_cell(op)])
            for action in ACTIONS:
                told["overflows_total", op, action] = self._bounds([event_cell(op, action)])
        return told

    def _bounds(self, cells: list[int]) -> Bounds:
        least, most = (sum(self.words[side + at] for at in cells) for side in (DONE, BEGUN))
        return Bounds(least, most)


def call_cell(op: str, mode: str, batch: int) -> int:
    """Where calls of a mode and a batch are counted."""
    return _cell(op, mode, bisect_left(BOUNDS, batch))


def sum_cell(op: str) -> int:
    """Where the batches of eager and replayed calls are added up."""
    return NAMES.index(op) * _OP_WORDS + _SUM


def event_cell(op: str, action: str) -> int:
    """Where overflows are counted."""
    return NAMES.index(op) * _OP_WORDS + _EVENTS + ACTIONS.index(action)


def _cell(op: str, mode: str, bucket: int) -> int:
    return NAMES.index(op) * _OP_WORDS + MODES.index(mode) * _BUCKETS + bucket
