"""Many threads, many shapes, forks under way: every call counts once."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from native_calls import (
    Watched,
    decode_arguments,
    nothing,
    workspace,
)
from slot_views import ReadSlot, eager
from threads import in_threads

from ws_guard.board.format import EXACT_ROWS, Header

if TYPE_CHECKING:
    from ws_guard.probe.recorder import Recorder


def test_eight_threads_lose_no_call(watched: Watched, slot: ReadSlot) -> None:
    op, buffer, each = watched.over(nothing), workspace(), 1_000_000
    calls = [decode_arguments(batch, buffer) for batch in (16, 17)]

    def work(number: int) -> None:
        arguments = calls[number % 2]
        for _ in range(each):
            op(*arguments)

    in_threads(8, work, switch_seconds=1e-4)
    assert [row.eager for row in slot().rows] == [4 * each, 4 * each]
    assert slot().probe_errors == 0


def test_new_shapes_from_many_threads_are_exact(watched: Watched, slot: ReadSlot) -> None:
    op, buffer = watched.over(nothing), workspace(1 << 30)

    def work(number: int) -> None:
        for batch in range(1, 301):
            op(*decode_arguments(batch, buffer, lse=number % 2 == 0))

    in_threads(8, work)
    assert [row.eager for row in slot().rows] == [4] * 600


def test_20_000_shapes_stay_exact_in_a_bounded_file(
    watched: Watched, slot: ReadSlot, recorder: Recorder
) -> None:
    op, buffer = watched.over(nothing), torch.empty(0, dtype=torch.uint8)
    arguments = decode_arguments(1, buffer)
    arguments[watched.at("workspace_size")] = 1 << 40
    batches = range(1, 20_001)
    for _ in range(2):
        for batch in batches:
            arguments[watched.at("batch_size")] = batch
            op(*arguments)
    told = slot()
    exact = [row for row in told.rows if not row.folded]
    folded = [row for row in told.rows if row.folded]
    assert [(row.shape.batch, row.eager) for row in exact] == [
        (batch, 2) for batch in batches[:EXACT_ROWS]
    ]
    # 14,465 to 16,384 and 16,385 to 20,000: two powers of two.
    assert [(row.eager, row.sum_eager) for row in folded] == [
        (2 * (16_384 - EXACT_ROWS), 2 * sum(range(EXACT_ROWS + 1, 16_385))),
        (2 * (20_000 - 16_384), 2 * sum(range(16_385, 20_001))),
    ]
    assert recorder.slot.path is not None
    assert Path(recorder.slot.path).stat().st_size <= 2 << 20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_under_a_running_thread_lose_no_call(
    watched: Watched, recorder: Recorder, slot: ReadSlot
) -> None:
    op, arguments, each = watched.over(nothing), decode_arguments(16, workspace()), 200_000

    def child() -> None:
        recorder.forget_slot()
        op(*arguments)

    context = multiprocessing.get_context("fork")
    thread = threading.Thread(target=lambda: [op(*arguments) for _ in range(each)])
    thread.start()
    children = []
    while thread.is_alive() and len(children) < 10:
        children.append(context.Process(target=child, daemon=True))
        children[-1].start()
    for process in children:
        process.join(timeout=60)
    thread.join()
    assert {process.exitcode for process in children} == {0}
    assert (slot().pid, eager(slot()), slot().probe_errors) == (os.getpid(), each, 0)


def test_slot_closed_under_running_threads(watched: Watched, recorder: Recorder) -> None:
    op, arguments = watched.over(lambda *_args: 7), decode_arguments(16, workspace())
    wrong: list[object] = []
    closed = threading.Event()

    def work(_number: int) -> None:
        after = 0
        while after < 1000:
            try:
                if op(*arguments) != 7:
                    wrong.append("result")
            except Exception as error:  # noqa: BLE001 - any is one too many
                wrong.append(error)
            after += closed.is_set()

    def close_soon(number: int) -> None:
        if number:
            return work(number)
        while not watched.ledger.known:
            pass
        recorder.close()
        return closed.set()

    in_threads(5, close_soon)
    assert wrong == []
    # A call that was under way is no error of the probe.
    assert recorder.slot.words[Header.PROBE_ERRORS] == 0
