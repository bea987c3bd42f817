"""The last runs of calls of a slot, as its ring tells them.

They are kept as words, and decoded when somebody asks: a board of many workers has many of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, overload

from .format import (
    CODE_BITS,
    EVENTS,
    NONE,
    OUTCOME_BITS,
    TICK_BITS,
    Outcome,
    Shape,
    unpack_run,
)

#: Parts of a ring word: row (shifted) and outcome, both, and the time.
ROWS = (1 << (CODE_BITS - OUTCOME_BITS)) - 1
OUTCOMES = (1 << OUTCOME_BITS) - 1
CODES = (1 << CODE_BITS) - 1
TIMES = NONE ^ CODES


class LastCall(NamedTuple):
    """One of the last runs of calls: when (Unix ns), what shape, `board.format.Outcome` number.

    The time is that of the latest call where the run is the current one of its lane, else that of
    its first; it may be up to 1,024 ns early.
    """

    at_ns: int
    shape: Shape
    outcome: int


class LastCalls(Sequence[LastCall]):
    """The last runs of calls, oldest first."""

    __slots__ = ("_origin", "_shapes", "_words")

    def __init__(
        self, words: Iterable[int], shapes: Mapping[int, Shape], origin: tuple[int, int] = (0, 0)
    ) -> None:
        """`words` are those of the ring (0 is none), the time of a run that lasts put forward.

        Those of one tick stay in their order. `shapes` are by row: runs of no row are left out.
        `origin` is one moment by the wall clock and by the clock of the words, in ns.
        """
        ordered = sorted(words, key=TIMES.__and__)
        known = (word for word in ordered if word >> OUTCOME_BITS & ROWS in shapes and word)
        self._words = array("Q", known)
        self._shapes = shapes
        self._origin = origin

    def __len__(self) -> int:
        return len(self._words)

    @overload
    def __getitem__(self, index: int) -> LastCall: ...
    @overload
    def __getitem__(self, index: slice) -> list[LastCall]: ...

    def __getitem__(self, index: int | slice) -> LastCall | list[LastCall]:
        if isinstance(index, slice):
            return [self._call(word) for word in self._words[index]]
        return self._call(self._words[index])

    def __iter__(self) -> Iterator[LastCall]:
        return map(self._call, self._words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # equal to any sequence of the same

    def events(self) -> list[LastCall]:
        """Those that went wrong."""
        return [self._call(word) for word in self._words if word & OUTCOMES in EVENTS]

    def newest(self) -> list[LastCall]:
        """The last of each workspace outside tuning."""
        newest: dict[int, int] = {}
        for word in self._words:
            if word & OUTCOMES != Outcome.TUNING:
                newest[self._shapes[word >> OUTCOME_BITS & ROWS].workspace] = word
        return [self._call(word) for word in sorted(newest.values())]

    def _call(self, word: int) -> LastCall:
        clock_ns, row, outcome = unpack_run(word)
        wall, clock = self._origin
        return LastCall(wall + max(0, clock_ns - clock), self._shapes[row], outcome)


def oldest_first(ring: list[int]) -> list[int]:
    """The words of a ring, which is written round and round."""
    newest = max(ring)
    place = ring.index(newest)
    for _ in ring:
        following = (place + 1) % len(ring)
        if ring[following] & TIMES != newest & TIMES:
            break
        place = following
    return ring[place + 1 :] + ring[: place + 1]


def put_forward(run: int, latest_ns: int) -> int:
    """The word of a run whose latest call was then; what went wrong is a run of one call."""
    if run & OUTCOMES in EVENTS:
        return run
    latest = min(latest_ns >> TICK_BITS << CODE_BITS, TIMES)
    return max(run, latest | run & CODES)
