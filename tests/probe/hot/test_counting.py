"""Every call is counted once, under its shape, and known shapes without the ledger."""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import TYPE_CHECKING

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from hot_paths import FIRST
from native_calls import MIB, decode_arguments, nothing, workspace
from slot_views import ReadSlot, eager_by_batch
from threads import in_threads

from ws_guard.board import Shape
from ws_guard.probe.ledger import Ledger

if TYPE_CHECKING:
    from native_calls import Watched

    from ws_guard.probe.recorder import Recorder


def test_calls_like_the_run_never_reach_the_ledger(
    built: bool, watched: Watched, slot: ReadSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, arguments = watched.over(lambda *_args: "told"), decode_arguments(16, workspace())
    for _ in range(FIRST):
        op(*arguments)
    assert type(op).__name__ == ("Counted" if built else "function")

    def met(*_args: object) -> None:
        raise AssertionError("the ledger was asked")

    monkeypatch.setattr(Ledger, "meet", met)
    before = time.time_ns()
    assert [op(*arguments) for _ in range(100)] == ["told"] * 100
    told = slot()
    assert eager_by_batch(told) == {16: FIRST + 100}
    assert told.probe_errors == 0
    assert before - 10**6 <= told.calls[-1].at_ns <= time.time_ns() + 10**6


def test_known_shapes_in_turn_never_reach_the_ledger_and_each_begins_a_run(
    built: bool, watched: Watched, slot: ReadSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = watched.over(nothing)
    steps = [decode_arguments(batch, workspace()) for batch in (16, 17, 18)]
    for arguments in steps:
        for _ in range(FIRST):
            op(*arguments)

    def met(*_args: object) -> None:
        raise AssertionError("Python was asked")

    monkeypatch.setattr(Ledger, "follow" if built else "meet", met)
    # As layers do: some calls of one shape, then some of the next.
    for arguments in steps * 4:
        op(*arguments)
        op(*arguments)
    told = slot()
    assert told.probe_errors == 0
    assert eager_by_batch(told) == {16: FIRST + 8, 17: FIRST + 8, 18: FIRST + 8}
    assert [call.shape.batch for call in told.calls[-13:]] == [18, *[16, 17, 18] * 4]
    moments = [call.at_ns for call in told.calls]
    assert moments == sorted(moments)
    assert time.time_ns() - 60 * 10**9 < moments[0] <= moments[-1] <= time.time_ns() + 10**6


DIFFERENT = {
    "batch": ("batch_size", 17),
    "q_len": ("max_q_len", 2),
    "size": ("workspace_size", 300 * MIB),
    "lse": ("lse", None),
    "top_k": ("sparse_mla_top_k", 0),
    # Heads and head dim change together: the tensor has as many elements as before.
    "heads": ("query", torch.empty(16, 32, 1152, device="meta")),
    "workspace": ("workspace_buffer", workspace()),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_whatever_differs_is_another_shape(what: str, watched: Watched, slot: ReadSlot) -> None:
    op, arguments = watched.over(nothing), decode_arguments(16, workspace())
    other, (parameter, value) = list(arguments), DIFFERENT[what]
    other[watched.at(parameter)] = value
    for _ in range(FIRST):
        op(*arguments)
    for _ in range(3):
        op(*other)
        op(*arguments)
    assert sorted(row.eager for row in slot().rows) == [3, FIRST + 3]
    assert slot().probe_errors == 0


def test_another_view_of_the_same_memory_is_the_same_workspace(
    watched: Watched, slot: ReadSlot
) -> None:
    op, buffer = watched.over(nothing), workspace()
    for _ in range(2 * FIRST):
        op(*decode_arguments(16, buffer[:]))
    assert [row.eager for row in slot().rows] == [2 * FIRST]


def test_two_modules_of_an_op_do_not_mix_their_runs(watched: Watched, slot: ReadSlot) -> None:
    ops = [watched.over(lambda *_args: None) for _ in range(2)]
    arguments = decode_arguments(16, workspace())
    for number in range(40):
        ops[number % 2](*arguments)
    assert eager_by_batch(slot()) == {16: 40}


def test_a_run_that_python_began_is_ended_in_c(watched: Watched, slot: ReadSlot) -> None:
    """Calls by a NumPy integer, which C leaves to Python, amid others of known shapes."""
    numpy = pytest.importorskip("numpy")
    op = watched.over(nothing)
    steps = [decode_arguments(batch, workspace()) for batch in (16, 17)]
    for arguments in steps:
        for _ in range(FIRST):
            op(*arguments)
    other = list(steps[0])
    other[watched.at("batch_size")] = numpy.int64(16)
    for arguments in (other, steps[1], other, other, steps[0], steps[1]) * 3:
        op(*arguments)
    told = slot()
    assert eager_by_batch(told) == {16: FIRST + 12, 17: FIRST + 6}
    assert [call.shape.batch for call in told.calls[-12:]] == [16, 17, 16, 17] * 3


def test_calls_of_a_folded_row_are_summed_up(
    watched: Watched, recorder: Recorder, slot: ReadSlot
) -> None:
    """Every row of its own is taken: batches up to a power of two share one."""
    lesser = Shape(0, 0, 1, 64, 1, True, 394 * MIB, 0, 148, 576, 512, 2048, None, None, 0)
    while not recorder.slot.add_row(lesser, 0)[2]:
        pass
    op, buffer = watched.over(nothing), workspace()
    steps = [decode_arguments(batch, buffer) for batch in (100, 120)]
    for _ in range(FIRST):
        for arguments in steps:
            op(*arguments)
    for arguments in steps * 5:
        op(*arguments)
    (folded,) = (row for row in slot().rows if row.eager)
    assert folded.folded
    assert (folded.eager, folded.sum_eager) == (2 * (FIRST + 5), (FIRST + 5) * (100 + 120))
    assert slot().probe_errors == 0


def test_threads_lose_no_call(watched: Watched, slot: ReadSlot) -> None:
    op = watched.over(nothing)
    steps = [decode_arguments(batch, workspace()) for batch in (16, 17)]
    calls, threads = 5_000, 4

    def call(_number: int) -> None:
        for number in range(calls):
            op(*steps[number // 7 % 2])

    in_threads(threads, call, switch_seconds=1e-6)
    assert sum(eager_by_batch(slot()).values()) == calls * threads
    assert slot().probe_errors == 0


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected between lines only")
def test_a_capture_that_begins_amid_a_garbage_collection_is_seen(
    built: bool, watched: Watched, slot: ReadSlot
) -> None:
    """Up to Python 3.11 finalizers, and so other threads, run wherever an object is made."""
    op, buffer = watched.over(nothing), workspace()
    graph, begun = type("Graph", (), {})(), []

    def collecting(phase: str, _info: dict[str, int]) -> None:
        if phase == "start" and not begun and sys._getframe(1).f_code is Ledger.follow.__code__:
            begun.append(graph)
            other = threading.Thread(target=watched.graphs.begin_capture, args=(graph,))
            other.start()
            other.join()

    threshold, kept, batch, calls = gc.get_threshold(), [], 0, 0
    gc.freeze()
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    try:
        # One object more before each shape is learned, until a collection comes amid of it.
        while not begun and batch < 20:
            batch, calls = batch + 1, 0
            arguments = decode_arguments(batch, buffer)
            kept.append([batch])
            gc.collect()  # or lists and tuples would be those that were let go of before
            while not begun and calls < FIRST:
                op(*arguments)
                calls += 1
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collecting)
        gc.unfreeze()
    if not built:
        assert not begun  # what Python compares with is learned without making an object
        return
    assert begun
    for _ in range(3):
        op(*arguments)
    row = slot().rows[-1]
    assert (row.shape.batch, row.eager, row.captured) == (batch, calls, 3)
