"""Readings beside a worker that never pauses: nothing half written is ever seen."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from board_worker import (
    FIRST_FOLDED,
    HAMMERED_ROWS,
    LAST_FOLDED,
    Worker,
    read,
    woven_document,
    woven_shape,
)

from ws_guard.board import Board, SlotReader, list_slots
from ws_guard.board.format import EXACT_ROWS, LANES, RING_RUNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.board import SlotView


def number_of(view: SlotView) -> int:
    number = view.document.get("number", 0)
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize("fresh", [False, True], ids=["one reader", "new readers"])
def test_rows_documents_and_calls_are_whole(
    board: Board, start: Callable[..., Worker], fresh: bool
) -> None:
    worker = start("hammer")
    reader = SlotReader(os.path.basename(worker.slot))
    counts: dict[int, int] = {}
    newest = readings = 0
    while readings < 1_000 or len(counts) < HAMMERED_ROWS:
        view = read(board, worker.slot, None if fresh else reader)
        readings += 1
        assert view.alive
        found = {row.shape.batch: row.eager for row in view.rows}
        assert [row.shape for row in view.rows] == [woven_shape(n + 1) for n in range(len(found))]
        assert all(found[batch] >= count for batch, count in counts.items())
        counts = found
        number = number_of(view)
        # A new reader that meets two publications at once has no document to fall back on.
        if number or not fresh:
            assert number >= newest
        if number:
            assert view.document == woven_document(number)
        newest = max(newest, number)
        # Current runs that the ring has lost already are told as well.
        assert len(view.calls) <= RING_RUNS + LANES
        assert all(call.shape == woven_shape(call.shape.batch) for call in view.calls)
        times = [call.at_ns for call in view.calls]
        assert times == sorted(times)
        assert view.attached_ns <= min(times, default=view.attached_ns)
    assert newest > readings, "the worker wrote while it was read"


@pytest.mark.parametrize("fresh", [False, True], ids=["one reader", "new readers"])
def test_the_worst_of_a_folded_row_is_whole(
    board: Board, start: Callable[..., Worker], fresh: bool
) -> None:
    worker = start("hammer_fold")
    reader = SlotReader(os.path.basename(worker.slot))
    calls, worsts = 0, set[int]()
    while len(worsts) < 30:
        folded = read(board, worker.slot, None if fresh else reader).rows[EXACT_ROWS:]
        # A new reader that meets the row half written has no shape to fall back on.
        assert len(folded) == 1 or fresh or not worsts
        for row in folded:
            assert row.folded
            assert FIRST_FOLDED <= row.shape.batch <= LAST_FOLDED
            assert row.shape == woven_shape(row.shape.batch)
            assert row.eager >= calls
            calls = row.eager
            worsts.add(row.shape.batch)


def test_a_worker_that_leaves_in_good_order_is_never_taken_for_dead(
    board: Board, start: Callable[..., Worker]
) -> None:
    start("come_and_go")
    directory = os.open(board.path, os.O_RDONLY)
    met = 0
    while met < 300:
        for name in list_slots(directory)[0]:
            try:
                view = SlotReader(name).read(board, directory)
            except FileNotFoundError:
                continue
            assert view.alive or view.closed
            met += 1
    os.close(directory)
