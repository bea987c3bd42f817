"""Where XQA's native arguments are, and what is read of a call there."""

from __future__ import annotations

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from xqa_native_calls import MIB, MLA, OP, contract, xqa_arguments, xqa_workspace

from ws_guard.probe.calls import NativeCall
from ws_guard.probe.xqa_op import xqa_positions_of
from ws_guard.sizing import HeadDims


def test_positions() -> None:
    # Counted by hand in xqa_wrapper.cu of 0.6.14, and in 0.6.15.post1, where they are the same.
    assert xqa_positions_of(contract(), OP)._asdict() == {
        "arguments": 25,
        "out": 6,
        "query": 8,
        "semaphores": 22,
        "scratch": 23,
        "batch": 17,
        "sm_count": 1,
        "kv_len": 15,
        "q_len": 20,
        "kv_heads": 2,
        "sm90_fp8": 0,
        "ragged": None,
    }
    mla = xqa_positions_of(contract(), MLA)
    assert (mla.arguments, mla.out, mla.query, mla.kv_len, mla.batch) == (16, 3, 4, 8, 10)
    assert (mla.semaphores, mla.scratch, mla.q_len, mla.kv_heads) == (13, 14, None, None)


def test_what_is_read_of_a_call() -> None:
    workspace = xqa_workspace()
    args = tuple(xqa_arguments(workspace=workspace, batch=3, qSeqLen=1, run_sm90_fp8_mha=True))
    assert xqa_positions_of(contract(), OP).read(args) == NativeCall(
        batch=3,
        heads=64,
        q_len=1,
        lse=False,
        sm_count=132,
        workspace_bytes=64 * MIB,
        workspace_address=workspace.data_ptr(),
        dims=HeadDims(128, 128),
        max_kv_len=2048,
        sum_q=3,
        counter_buffer_bytes=None,
        kv_heads=8,
        sm90_fp8=True,
    )


@pytest.mark.parametrize("scratch_bytes", [4096, 0])
def test_two_views_are_one_workspace(scratch_bytes: int) -> None:
    workspace = xqa_workspace(8 * MIB + scratch_bytes)
    read = xqa_positions_of(contract(), OP).read(tuple(xqa_arguments(workspace=workspace)))
    assert read.workspace_address == workspace.data_ptr()
    assert read.workspace_bytes == 8 * MIB + scratch_bytes


def test_two_buffers_are_told_by_the_scratch() -> None:
    scratch = xqa_workspace(MIB)
    read = xqa_positions_of(contract(), OP).read(tuple(xqa_arguments(scratch=scratch)))
    assert (read.workspace_address, read.workspace_bytes) == (scratch.data_ptr(), 9 * MIB)


def test_another_workspace_is_sliced_as_python_slices_it() -> None:
    where = xqa_positions_of(contract(), OP)
    args = xqa_arguments()
    args[where.semaphores] = args[where.semaphores].view(torch.int32)
    ours = xqa_workspace(16 * MIB)
    changed = where.with_workspace(tuple(args), ours)
    semaphores, scratch = changed[where.semaphores], changed[where.scratch]
    assert (semaphores.dtype, semaphores.data_ptr()) == (torch.int32, ours.data_ptr())
    assert (scratch.dtype, scratch.numel()) == (torch.uint8, 8 * MIB)
    assert scratch.data_ptr() == ours.data_ptr() + 8 * MIB
    others = [at for at in range(where.arguments) if at not in (where.semaphores, where.scratch)]
    assert all(changed[at] is args[at] for at in others)
