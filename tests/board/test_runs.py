"""Runs of calls: when the last call of each lane was, and what the ring tells of those before."""

from __future__ import annotations

import math
import os
import struct
import time
from typing import TYPE_CHECKING

import pytest
from board_worker import make_shape, patch, read

from ws_guard.board import Board, Outcome, Slot, SlotReader
from ws_guard.board.format import LANES, REPLAYS, RING_RUNS, Header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = Callable[[float], None]

SECOND = 1_000_000_000
#: What a ring word leaves out of a time.
TICK_NS = 1024


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Step:
    """`step(seconds)`: that much later. The clock stands still otherwise."""
    now = time.monotonic_ns()

    def go(seconds: float) -> None:
        nonlocal now
        now += int(seconds * SECOND)

    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(time, "monotonic", lambda: now / 1e9)
    return go


@pytest.fixture
def still(step: Step, board: Board) -> Iterator[Slot]:
    """A slot attached while the clock stood still, with four rows."""
    step(0)
    slot = Slot.on_board(board)
    for batch in (1, 2, 3, 4):
        slot.add_row(make_shape(batch=batch), 0)
    yield slot
    slot.close()


def told(board: Board, slot: Slot) -> list[tuple[int, Outcome, float]]:
    """(batch, outcome, seconds after attaching), oldest first."""
    view = read(board, slot.path)
    return [
        (call.shape.batch, Outcome(call.outcome), round((call.at_ns - view.attached_ns) / 1e9, 3))
        for call in view.calls
    ]


def test_a_run_that_lasts_has_the_time_of_its_last_call(
    board: Board, still: Slot, step: Step
) -> None:
    step(1)
    still.begin_run(0, 0, Outcome.EAGER)
    step(2)
    # What the hot path does for a call like the one before it.
    still.last_call[0] = time.monotonic()
    assert told(board, still) == [(1, Outcome.EAGER, 3.0)]
    step(4)
    still.begin_run(0, 1, Outcome.EAGER)
    # The run before is over: of it the first call is known.
    assert told(board, still) == [(1, Outcome.EAGER, 1.0), (2, Outcome.EAGER, 7.0)]


def test_every_lane_has_a_run_of_its_own(board: Board, still: Slot, step: Step) -> None:
    for lane, row in ((0, 0), (1, 1), (REPLAYS, 2)):
        step(1)
        still.begin_run(lane, row, Outcome.REPLAYED if lane == REPLAYS else Outcome.EAGER)
    step(1)
    still.last_call[0] = time.monotonic()
    assert told(board, still) == [
        (2, Outcome.EAGER, 2.0),
        (3, Outcome.REPLAYED, 3.0),
        (1, Outcome.EAGER, 4.0),
    ]


@pytest.mark.parametrize(
    "outcome", [Outcome.OVERFLOW, Outcome.OVERRUN, Outcome.RAISED, Outcome.SPLIT]
)
def test_an_event_keeps_its_time(outcome: Outcome, board: Board, still: Slot, step: Step) -> None:
    """Whoever tells events once knows them by it."""
    step(1)
    still.begin_run(0, 3, outcome)
    before = read(board, still.path).calls
    step(1)
    still.last_call[0] = time.monotonic()
    assert read(board, still.path).calls == before
    assert told(board, still) == [(4, outcome, 1.0)]


def test_a_quiet_lane_is_not_lapped_by_a_busy_one(board: Board, still: Slot, step: Step) -> None:
    """The run of lane 0 lasts while another fills the whole ring with runs of its own."""
    still.begin_run(0, 0, Outcome.EAGER)
    for number in range(RING_RUNS):
        step(1e-3)
        still.begin_run(1, 1 + number % 3, Outcome.EAGER)
    step(1)
    still.last_call[0] = time.monotonic()
    calls = told(board, still)
    assert len(calls) == RING_RUNS + 1
    # 1,024 steps of a millisecond, then a second.
    assert calls[-1] == (1, Outcome.EAGER, 2.024)
    still.begin_run(0, 1, Outcome.EAGER)
    assert len(told(board, still)) == RING_RUNS


def test_a_call_is_never_told_from_before_the_worker(board: Board, still: Slot) -> None:
    """A ring word cuts a time to 1,024 ns, which may lie before the attaching."""
    still.begin_run(0, 3, Outcome.RAISED)
    view = read(board, still.path)
    assert view.attached_ns <= view.calls[0].at_ns < view.attached_ns + TICK_NS


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 1e300])
@pytest.mark.parametrize("word", [Header.ATTACHED_CLOCK, Header.LAST_CALL])
def test_a_clock_that_none_shows_is_no_error(
    word: Header, seconds: float, board: Board, still: Slot
) -> None:
    still.begin_run(0, 0, Outcome.EAGER)
    assert still.path is not None
    patch(still.path, 8 * word, struct.pack("<d", seconds))
    view = read(board, still.path)
    assert [call.shape.batch for call in view.calls] == [1]
    assert view.calls[0].at_ns >= view.attached_ns


def test_lanes_of_ops_and_replays_are_apart() -> None:
    assert (REPLAYS, LANES) == (8, 9)


#: That of the op of `make_shape`: eager runs are in the lane of their op.
LANE = make_shape().op


def since(slot: Slot, seconds_ago: float) -> list[tuple[int, Outcome]]:
    """(batch, outcome) of the runs that may have had a call in the last seconds."""
    runs = slot.calls_since(time.monotonic() - seconds_ago)
    return [(shape.batch, outcome) for shape, outcome in runs]


def test_runs_since_a_moment_are_told_by_their_ends(still: Slot, step: Step) -> None:
    assert since(still, 1000) == []
    for row in (0, 1, 2):
        step(1)
        still.begin_run(LANE, row, Outcome.EAGER)
    eager = [(batch, Outcome.EAGER) for batch in (1, 2, 3)]
    assert since(still, 10) == eager
    # 3 began now; 2 may have lasted until then, and 1 ended a second ago at the latest.
    assert since(still, 0.5) == eager[1:]
    step(1)
    assert since(still, 0.5) == []
    still.last_call[LANE] = time.monotonic()
    assert since(still, 0.5) == eager[2:]
    # However close two begin, the first is over with the second.
    for row in (0, 1):
        still.begin_run(LANE, row, Outcome.EAGER)
        step(0.00001)
    step(10)
    still.last_call[LANE] = time.monotonic()
    assert since(still, 1) == eager[1:2]


def test_a_run_that_went_on_is_told_though_another_followed(still: Slot, step: Step) -> None:
    still.begin_run(LANE, 0, Outcome.EAGER)
    step(10)
    # Calls of the first row may have been made until now, when the second one's come.
    still.begin_run(LANE, 1, Outcome.EAGER)
    assert since(still, 1) == [(1, Outcome.EAGER), (2, Outcome.EAGER)]


def test_an_event_is_a_single_call_and_ends_no_later(still: Slot, step: Step) -> None:
    still.begin_run(LANE, 0, Outcome.OVERRUN)
    step(10)
    still.begin_run(LANE, 1, Outcome.EAGER)
    assert since(still, 1) == [(2, Outcome.EAGER)]
    assert since(still, 10) == [(1, Outcome.OVERRUN), (2, Outcome.EAGER)]


def test_another_lane_ends_no_run(still: Slot, step: Step) -> None:
    still.begin_run(LANE, 0, Outcome.EAGER)
    still.begin_run(REPLAYS, 1, Outcome.REPLAYED)
    step(10)
    still.begin_run(REPLAYS, 2, Outcome.REPLAYED)
    # The eager run had its last call ten seconds ago; the replays may have gone on.
    assert since(still, 1) == [(2, Outcome.REPLAYED), (3, Outcome.REPLAYED)]


def test_the_rows_of_a_graph_are_replayed_together(still: Slot, step: Step) -> None:
    for row in (0, 1):
        still.begin_run(REPLAYS, row, Outcome.REPLAYED)
        step(0.00001)
    step(10)
    still.last_call[REPLAYS] = time.monotonic()
    assert [batch for batch, _ in since(still, 1)] == [1, 2]
    step(10)
    still.begin_run(REPLAYS, 2, Outcome.REPLAYED)
    assert [batch for batch, _ in since(still, 1)] == [1, 2, 3]


def test_a_worse_shape_of_a_folded_row_leaves_what_was_read_before_as_it_was(
    board: Board, still: Slot
) -> None:
    while not still.add_row(make_shape(batch=1), 0)[2]:
        pass  # until the table is full, and rows fold
    row, _, _ = still.add_row(make_shape(batch=600), 600)
    still.begin_run(0, row, Outcome.EAGER)
    assert still.path
    reader = SlotReader(os.path.basename(still.path))
    before = read(board, still.path, reader)
    assert still.add_row(make_shape(batch=1_000), 1_000)[0] == row
    after = read(board, still.path, reader)
    assert [view.calls[-1].shape.batch for view in (before, after)] == [600, 1_000]


@pytest.mark.parametrize("before", [0, 7, RING_RUNS - 2, RING_RUNS, 3 * RING_RUNS - 1])
def test_runs_of_one_moment_keep_their_order(
    board: Board, still: Slot, step: Step, before: int
) -> None:
    for number in range(before):
        step(1)
        still.begin_run(0, number % 2, Outcome.EAGER)
    step(1)
    for row in (3, 1, 2, 0, 2):
        still.begin_run(0, row, Outcome.EAGER)
    assert [batch for batch, _, _ in told(board, still)[-5:]] == [4, 2, 3, 1, 3]
