"""Slots as a worker writes them: no count lost, whatever the number of threads and shapes."""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from board_worker import make_shape, read

from ws_guard.board import ACTIONS, OVERFLOW, OVERRUN, Board, Outcome, Shape, Slot
from ws_guard.board.format import (
    COUNT_EAGER,
    COUNT_REPLAYED,
    DOCUMENT_BYTES,
    EXACT_ROWS,
    FOLD_ROWS,
    SLOT_BYTES,
    SUM_EAGER,
    SUM_REPLAYED,
    event_word,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ws_guard.board import Row

THREADS, CALLS = 8, 1_000_000


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads change as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


# -- counting ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty_threads")
def test_threads_lose_no_count(board: Board, slot: Slot) -> None:
    words = slot.words
    _, row, _ = slot.add_row(make_shape(), 0)

    def call() -> None:
        for _ in range(CALLS):
            words[row + COUNT_EAGER] += 1

    threads = [threading.Thread(target=call) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.eager for row in read(board, slot.path).rows] == [8_000_000]


@pytest.mark.usefixtures("hasty_threads")
def test_threads_share_no_row_and_no_event(board: Board, slot: Slot) -> None:
    numbers: list[int] = []

    def call(first: int) -> None:
        for batch in range(first, first + 500):
            numbers.append(slot.add_row(make_shape(batch=batch), 0)[0])
            slot.add_event(2, OVERRUN, 1)
            slot.add_probe_error()

    threads = [threading.Thread(target=call, args=(500 * n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    view = read(board, slot.path)
    assert sorted(numbers) == list(range(4_000))
    assert {row.shape.batch for row in view.rows} == set(range(4_000))
    assert view.events == {(2, OVERRUN, "raised"): 4_000}
    assert view.probe_errors == 4_000


# -- shapes beyond the table ------------------------------------------------------------------


def need_of(shape: Shape) -> int:
    """A need that grows with batch and heads, in no order that the rows could know."""
    return shape.batch * 1_000 + shape.heads


def bucket(batch: int) -> int:
    """The bucket of the documented histogram that a batch falls into: 1, 4, 16, ... 65536."""
    return bisect_left([4**power for power in range(9)], batch)


@pytest.fixture
def many_shapes() -> list[Shape]:
    """20,000 shapes, all different, in no order, over six (op, workspace) pairs."""
    shapes = [
        make_shape(op=n % 2, workspace=n % 3, batch=1 + n // 6 * 19, heads=1 + n % 128)
        for n in range(20_000)
    ]
    random.Random(7).shuffle(shapes)  # noqa: S311 - the same order every time
    assert len(set(shapes)) == 20_000
    return shapes


def count_as_the_probe_does(slot: Slot, shapes: list[Shape]) -> None:
    """The n-th shape is called n % 5 + 1 times, and replayed n % 3 times."""
    for n, shape in enumerate(shapes):
        _, row, folded = slot.add_row(shape, need_of(shape))
        for count, total, times in (
            (COUNT_EAGER, SUM_EAGER, n % 5 + 1),
            (COUNT_REPLAYED, SUM_REPLAYED, n % 3),
        ):
            slot.words[row + count] += times
            if folded:
                slot.words[row + total] += times * shape.batch


def test_shapes_beyond_the_table_keep_counts_sums_and_the_worst_exact(
    board: Board, slot: Slot, many_shapes: list[Shape]
) -> None:
    count_as_the_probe_does(slot, many_shapes)
    rows = read(board, slot.path).rows
    # 5,536 shapes fold; two ops and three workspaces make six pairs, and batches up to 63,328 span
    # the powers 0 to 16.
    assert sum(not row.folded for row in rows) == EXACT_ROWS == 20_000 - 5_536
    assert sum(row.folded for row in rows) <= 6 * 17
    assert os.path.getsize(str(slot.path)) == SLOT_BYTES
    assert sum(row.eager for row in rows) == 4_000 * (1 + 2 + 3 + 4 + 5)
    # 20,000 = 3 x 6,666 + 2: the last two are called 0 times and once.
    assert sum(row.replayed for row in rows) == 6_666 * (0 + 1 + 2) + 1
    assert worst_by_place(row.shape for row in rows) == worst_by_place(many_shapes)
    batch_sum = sum(
        row.sum_eager + row.sum_replayed
        if row.folded
        else row.shape.batch * (row.eager + row.replayed)
        for row in rows
    )
    calls = [(shape.batch, n % 5 + 1 + n % 3) for n, shape in enumerate(many_shapes)]
    assert batch_sum == sum(batch * times for batch, times in calls)
    assert histogram((row.shape.batch, row.eager + row.replayed) for row in rows) == (
        histogram(calls)
    )


def worst_by_place(shapes: Iterator[Shape] | list[Shape]) -> dict[tuple[int, int], int]:
    worst: dict[tuple[int, int], int] = {}
    for shape in shapes:
        place = shape.op, shape.workspace
        worst[place] = max(worst.get(place, 0), need_of(shape))
    return worst


def histogram(calls: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for batch, times in calls:
        counts[bucket(batch)] += times
    return counts


def fill_table(slot: Slot) -> None:
    for batch in range(EXACT_ROWS):
        slot.add_row(make_shape(batch=batch), 0)


def folded_rows(board: Board, slot: Slot) -> list[Row]:
    return [row for row in read(board, slot.path).rows if row.folded]


def test_a_folded_row_shows_the_worst_by_need(board: Board, slot: Slot) -> None:
    fill_table(slot)
    found = [
        slot.add_row(make_shape(batch=batch), need)
        for batch, need in ((20_000, 5), (30_000, 9), (32_768, 9), (17_000, 8))
    ]
    assert len(set(found)) == 1
    assert [row.shape.batch for row in folded_rows(board, slot)] == [30_000]


def test_what_is_told_apart_is_folded_apart(board: Board, slot: Slot) -> None:
    fill_table(slot)
    places = list(itertools.product((0, 3), (0, 7, 8, 9), (1, 2, 4, 65_536)))
    rows = {slot.add_row(make_shape(op=o, workspace=w, batch=b), 1)[0] for o, w, b in places}
    # Workspaces 8 and 9 are both `other`.
    assert len(rows) == len(folded_rows(board, slot)) == 2 * 3 * 4


def test_even_the_rows_for_the_rest_run_out_without_harm(board: Board, slot: Slot) -> None:
    fill_table(slot)
    places = list(itertools.product(range(8), range(8), range(25)))  # 1,600 of 1,536
    for place, (op, workspace, power) in enumerate(places):
        need = 7 if place == 1_550 else 1
        shape = make_shape(op=op, workspace=workspace, batch=1 << power, heads=place)
        number, word, folded = slot.add_row(shape, need)
        assert number == EXACT_ROWS + min(place, FOLD_ROWS - 1)
        assert folded
        slot.words[word + COUNT_EAGER] += 1
    rows = folded_rows(board, slot)
    assert len(rows) == 1_536
    assert sum(row.eager for row in rows) == 1_600
    assert rows[-1].shape.heads == 1_550


# -- calls and events -------------------------------------------------------------------------


def test_the_ring_keeps_the_last_1024_runs_in_order(board: Board, slot: Slot) -> None:
    rows = [slot.add_row(make_shape(batch=batch), 0)[0] for batch in range(1_100)]
    for row in rows:
        slot.begin_run(0, row, Outcome.EAGER)
    calls = read(board, slot.path).calls
    assert sorted(call.shape.batch for call in calls) == list(range(76, 1_100))
    assert {call.outcome for call in calls} == {Outcome.EAGER}
    times = [call.at_ns for call in calls]
    assert times == sorted(times)
    assert slot.attached_ns <= times[0]


def test_events_are_counted_stamped_and_taken_back(board: Board, slot: Slot) -> None:
    assert not slot.saw_trouble()
    slot.add_event(0, OVERFLOW, 0)
    slot.add_event(0, OVERFLOW, 0)
    slot.add_event(0, OVERFLOW, 0, count=-1)
    view = read(board, slot.path)
    assert view.events == {(0, OVERFLOW, "observed"): 1}
    assert view.last_overflow_ns >= view.attached_ns
    assert view.last_overrun_ns == 0
    assert slot.saw_trouble()


@pytest.mark.parametrize("kind", [OVERFLOW, OVERRUN])
@pytest.mark.parametrize(
    ("actions", "seconds_ago", "evidence"),
    [
        (["split"], 0, False),
        (["raised"], 0, True),
        (["raised"], 60, True),
        (["raised"], 61, False),
        (["observed"], 1_000_000, True),
        # The one that was split did not take the worker down, nor did it before.
        (["raised", "split"], 61, False),
        (["observed", "raised", "split"], 61, True),
    ],
)
def test_evidence_is_what_the_worker_may_have_died_of(
    kind: int,
    actions: list[str],
    seconds_ago: float,
    evidence: bool,
    slot: Slot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It exits so many seconds after its last event."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for action in actions:
        slot.add_event(0, kind, ACTIONS.index(action))
    monkeypatch.setattr(time, "monotonic", lambda: now + seconds_ago)
    assert slot.saw_trouble() is evidence


def test_an_event_of_another_slot_can_be_taken_back_without_harm(slot: Slot) -> None:
    slot.add_event(0, OVERFLOW, 0, count=-1)
    assert slot.words[event_word(0, OVERFLOW, 0)] == 0


# -- the document -----------------------------------------------------------------------------


def test_a_document_replaces_the_one_before(board: Board, slot: Slot) -> None:
    assert read(board, slot.path).document == {}
    for text in ("short", "long " * 3_000, "", "é ☃ \udc80"):
        slot.describe({"text": text})
        assert read(board, slot.path).document == {"text": text}


def test_a_document_too_long_changes_nothing(board: Board, slot: Slot) -> None:
    overhead = len('{"text":""}')
    largest = "x" * (DOCUMENT_BYTES - 16 - overhead)
    slot.describe({"text": largest})
    slot.describe({"text": largest[:-1]})
    before = bytes(slot.words)
    with pytest.raises(ValueError, match="the document has 16369 bytes, 16368 fit"):
        slot.describe({"text": largest + "x"})
    assert bytes(slot.words) == before
    assert read(board, slot.path).document == {"text": largest[:-1]}
