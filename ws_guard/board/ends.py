"""When the runs of calls in a worker's own ring were over, as far as its slot tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .format import EVENTS, REPLAYS, TICK_BITS, Outcome, unpack_run

_TICK_S = (1 << TICK_BITS) / 1e9
#: The runs of one graph's rows begin closer together than this.
_ONE_GO_S = 0.001


def ends_of_runs(
    ring: Iterable[int], current: dict[int, float], op_of: Callable[[int], int]
) -> dict[int, float]:
    """By run: when its last call was at the latest, in seconds of the monotonic clock.

    `current` has the last call of each lane's current run, which the ring may have lost; `op_of`
    tells the op of a row. Of any other run it is not noted: it was over when the next of its lane
    began.
    """
    ends = current.copy()
    following: dict[int, tuple[float, float]] = {}
    # The time stands first in a ring word.
    for run in sorted({run for run in ring if run} | set(current), reverse=True):
        clock_ns, row, outcome = unpack_run(run)
        begun = clock_ns / 1e9
        lane = REPLAYS if outcome == Outcome.REPLAYED else op_of(row)
        next_begun, next_end = following.get(lane, (begun, begun))
        if outcome in EVENTS:
            ends[run] = begun + _TICK_S
        elif run not in ends:
            # The rows of one graph are written in one go, and replayed together.
            together = lane == REPLAYS and next_begun - begun < _ONE_GO_S
            ends[run] = next_end if together else min(next_begun + _TICK_S, next_end)
        following[lane] = begun, ends[run]
    return ends
