"""What the probe never does to a real call: its result, its tensors, its compilation."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import weakref
from typing import TYPE_CHECKING

import pytest
from flashinfer_calls import MIB, PUBLIC_CALLS, Shape, workspace
from native_modules import DECODE, native_arguments, native_decode_module
from probed_board import calls_by_mode, probed, slots

if TYPE_CHECKING:
    from ws_guard.launcher import Recorder


@pytest.mark.usefixtures("on_cpu")
def test_results_are_those_without_the_probe(board: str) -> None:
    call = PUBLIC_CALLS["sparse_mla"].build(Shape(4, 32, lse=True), workspace(64 * MIB))
    bare = call()
    with probed(board):
        probed_result = call()
    assert [(type(r), r.shape, r.dtype, r.stride()) for r in probed_result] == [
        (type(r), r.shape, r.dtype, r.stride()) for r in bare
    ]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("size", [64 * MIB, MIB], ids=["fits", "refused"])
def test_no_tensor_is_kept_alive(size: int, board: str) -> None:
    buffer = workspace(size)
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32, lse=True), buffer)
    tensors = [weakref.ref(buffer), weakref.ref(call.keywords["query"])]
    with probed(board):
        with contextlib.suppress(RuntimeError):
            call()
        (slot,) = slots(board)
        assert len(slot.calls) == 1
        del buffer, call
        assert [tensor() for tensor in tensors] == [None, None]


@pytest.mark.usefixtures("on_cpu")
def test_unusable_board_leaves_calls_alone(caplog: pytest.LogCaptureFixture) -> None:
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32, lse=True), workspace(MIB))
    with caplog.at_level(logging.WARNING, "ws_guard"), probed("/proc/no/board"):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="trtllm_gen_"):
                call()
    # The buffer of the test is not zeroed, and the probe says that as well.
    assert sum("not observed: board /proc/no/board" in line for line in caplog.messages) == 1


def test_board_removed_under_a_worker_leaves_calls_alone(board: str, on_cpu: Recorder) -> None:
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))
    with probed(board):
        call()
        shutil.rmtree(board)
        before = on_cpu.last()
        # Of a known shape, and of a new one, which is written into the slot.
        for again in (call, PUBLIC_CALLS["decode"].build(Shape(5, 32), workspace(64 * MIB))):
            again()
        assert before is not None
        assert on_cpu.last().ordinal == before.ordinal + 2
    assert not os.path.exists(board)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("action", ["observe", "raise", "split"])
def test_dynamo_does_not_look_into_the_probe(action: str, board: str) -> None:
    """Compiled code breaks at the probe as it does at the native function, and there alone."""
    PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))()
    bare = compiled_steps()
    with probed(board, action):
        assert compiled_steps() == bare
        (slot,) = slots(board)
        # One call to learn its arguments, three in the compiled step.
        assert (calls_by_mode(slot)["eager"], slot.probe_errors) == (3, 0)


def compiled_steps() -> tuple[int, int]:
    """(frames compiled, graph breaks) of a step with the native decode in it, made three times."""
    import torch
    import torch._dynamo.utils as dynamo

    call = PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))
    arguments, op = native_arguments(call), getattr(native_decode_module(), DECODE)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        op(*arguments)
        return y * 2

    torch._dynamo.reset()
    dynamo.counters.clear()
    compiled = torch.compile(step, backend="eager")
    for n in range(3):
        assert compiled(torch.full((2,), float(n))).tolist() == [2.0 * (n + 1)] * 2
    breaks = sum(dynamo.counters["graph_break"].values())
    return dynamo.counters["frames"]["total"], breaks
