"""The wrapper around XQA's native ops: what it reads, what the hot path counts, what it leaves."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from meetings import MIB, Meetings

from ws_guard.board import OVERRUN
from ws_guard.contract import installed_xqa
from ws_guard.probe.calls import NativeCall
from ws_guard.probe.xqa_op import instrument_xqa, xqa_positions_of
from ws_guard.sizing import XQA_OPS, XQA_SEMAPHORE_BYTES, HeadDims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ws_guard.board import SlotView
    from ws_guard.probe.ledger import Ledger

OP, MLA = XQA_OPS["xqa"], XQA_OPS["xqa_mla"]
contract = functools.cache(installed_xqa)


def arguments(
    op: str = OP,
    workspace: torch.Tensor | None = None,
    *,
    batch: int = 16,
    tokens: int = 2048,
    **changes: Any,
) -> list[Any]:
    """A decode step of 64 query and 8 KV heads of 128; MLA has 128 heads of 576 and 512."""
    if workspace is None:
        workspace = torch.zeros(64 * MIB, dtype=torch.uint8)
    heads, qk, vo = (64, 128, 128) if op == OP else (128, 576, 512)
    named = {
        "run_sm90_fp8_mha": False,
        "multiProcessorCount": 132,
        "nbKHeads": 8,
        "output": torch.empty(batch, 1, heads, vo, device="meta"),
        "q": torch.empty(batch, 1, heads, qk, device="meta"),
        "maxSeqLen": tokens,
        "batchSize": batch,
        "qSeqLen": 1,
        "semaphores": workspace[:XQA_SEMAPHORE_BYTES],
        "scratch": workspace[XQA_SEMAPHORE_BYTES:],
        **changes,
    }
    return [named.get(name) for name in contract().signatures[op]]


class Watched:
    """An XQA op under a probe; `ledger_calls` are those that did not stay on the hot path."""

    def __init__(self, meetings: Meetings, op: str = OP) -> None:
        self.meetings = meetings
        self.ledger: Ledger = meetings._ledgers[op]
        self.where = xqa_positions_of(contract(), op)
        self.ledger_calls = 0
        meet = self.ledger.meet

        def counted(met: Any) -> Any:
            self.ledger_calls += 1
            return meet(met)

        self.ledger.meet = counted  # type: ignore[method-assign]

    def over(self, native: Callable[..., Any]) -> Callable[..., Any]:
        return instrument_xqa(native, self.where, self.ledger)


@pytest.fixture
def meetings(board: str) -> Iterator[Meetings]:
    made = Meetings(board, "C")
    yield made
    made.close()


@pytest.fixture
def watched(meetings: Meetings) -> Watched:
    return Watched(meetings)


def eager(slot: SlotView) -> dict[int, int]:
    return {row.shape.batch: row.eager for row in slot.rows}


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
    workspace = torch.zeros(64 * MIB, dtype=torch.uint8)
    args = tuple(arguments(workspace=workspace, batch=3, qSeqLen=1, run_sm90_fp8_mha=True))
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
    workspace = torch.zeros(8 * MIB + scratch_bytes, dtype=torch.uint8)
    read = xqa_positions_of(contract(), OP).read(tuple(arguments(workspace=workspace)))
    assert read.workspace_address == workspace.data_ptr()
    assert read.workspace_bytes == 8 * MIB + scratch_bytes


def test_two_buffers_are_told_by_the_scratch() -> None:
    scratch = torch.zeros(MIB, dtype=torch.uint8)
    read = xqa_positions_of(contract(), OP).read(tuple(arguments(scratch=scratch)))
    assert (read.workspace_address, read.workspace_bytes) == (scratch.data_ptr(), 9 * MIB)


def test_another_workspace_is_sliced_as_python_slices_it() -> None:
    where = xqa_positions_of(contract(), OP)
    args = arguments()
    args[where.semaphores] = args[where.semaphores].view(torch.int32)
    ours = torch.zeros(16 * MIB, dtype=torch.uint8)
    changed = where.with_workspace(tuple(args), ours)
    semaphores, scratch = changed[where.semaphores], changed[where.scratch]
    assert (semaphores.dtype, semaphores.data_ptr()) == (torch.int32, ours.data_ptr())
    assert (scratch.dtype, scratch.numel()) == (torch.uint8, 8 * MIB)
    assert scratch.data_ptr() == ours.data_ptr() + 8 * MIB
    others = [at for at in range(where.arguments) if at not in (where.semaphores, where.scratch)]
    assert all(changed[at] is args[at] for at in others)


def test_the_hot_path_counts_from_the_fifth_call_on(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    op, args = watched.over(lambda *_: "the result"), arguments()
    for _ in range(1000):
        assert op(*args) == "the result"
    assert eager(slot()) == {16: 1000}
    # The first four are looked at, and what is learned from the fourth counts the fifth.
    assert watched.ledger_calls == 4
    assert slot().probe_errors == 0


def test_shapes_in_turn_leave_the_ledger_alone(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    op, workspace = watched.over(lambda *_: None), torch.zeros(64 * MIB, dtype=torch.uint8)
    steps = [arguments(workspace=workspace, batch=batch) for batch in (16, 20, 24)]
    for _ in range(100):
        for step in steps:
            op(*step)
    assert eager(slot()) == {16: 100, 20: 100, 24: 100}
    assert watched.ledger_calls == 3 * 4


def test_views_made_anew_are_the_same_workspace(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    op, workspace = watched.over(lambda *_: None), torch.zeros(64 * MIB, dtype=torch.uint8)
    for _ in range(20):
        op(*arguments(workspace=workspace))
    assert eager(slot()) == {16: 20}
    assert watched.ledger_calls == 4
    assert slot().document["workspaces"] == ["ws0"]


@pytest.mark.parametrize(
    "change",
    [{"nbKHeads": 4}, {"qSeqLen": 2}, {"batchSize": 17}, {"workspace": 32 * MIB}],
    ids=lambda change: next(iter(change)),
)
def test_a_change_is_another_shape(
    watched: Watched, slot: Callable[[], SlotView], change: dict[str, int]
) -> None:
    op, workspace = watched.over(lambda *_: None), torch.zeros(64 * MIB, dtype=torch.uint8)
    size = change.pop("workspace", 64 * MIB)
    for _ in range(10):
        op(*arguments(workspace=workspace))
        op(*arguments(workspace=workspace[:size], **change))
    assert sorted(row.eager for row in slot().rows) == [10, 10]


def test_two_modules_are_told_apart_by_their_function(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    workspace = torch.zeros(64 * MIB, dtype=torch.uint8)
    ops = [watched.over(lambda *_: None) for _ in range(2)]
    # As modules of other head dimensions: nothing else of the call says so on the hot path.
    steps = [
        arguments(workspace=workspace, q=torch.empty(16, 1, 64, dim, device="meta"))
        for dim in (64, 128)
    ]
    for _ in range(10):
        for op, step in zip(ops, steps, strict=True):
            op(*step)
    assert sorted((row.shape.qk, row.eager) for row in slot().rows) == [(64, 10), (128, 10)]


def test_an_overrun_is_judged_call_by_call(watched: Watched, slot: Callable[[], SlotView]) -> None:
    # 16 CTAs for each of 8 KV heads: 256 bytes of statistics and 2,048 of output each, 294,912.
    op = watched.over(lambda *_: None)
    workspace = torch.zeros(8 * MIB + 294_912 - 1, dtype=torch.uint8)
    for tokens in (256, 32_768, 256, 32_768, 256):
        op(*arguments(workspace=workspace, batch=1, tokens=tokens))
    assert eager(slot()) == {1: 5}
    assert slot().events == {(4, OVERRUN, "observed"): 2}
    # One byte more holds it.
    enough = torch.zeros(8 * MIB + 294_912, dtype=torch.uint8)
    op(*arguments(workspace=enough, batch=1, tokens=32_768))
    assert slot().events == {(4, OVERRUN, "observed"): 2}


def test_the_fp8_kernel_of_hopper_is_never_certain(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    op, workspace = watched.over(lambda *_: None), torch.zeros(8 * MIB + 16, dtype=torch.uint8)
    op(*arguments(workspace=workspace, batch=1, tokens=32_768, run_sm90_fp8_mha=True))
    assert (eager(slot()), slot().events) == ({1: 1}, {})


def test_calls_in_a_capture_are_counted_as_captured(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    op, args = watched.over(lambda *_: None), arguments()
    for _ in range(6):
        op(*args)
    with watched.meetings.capture():
        for _ in range(3):
            op(*args)
    op(*args)
    (row,) = slot().rows
    assert (row.eager, row.captured) == (7, 3)


def test_errors_of_the_native_function_pass(watched: Watched, slot: Callable[[], SlotView]) -> None:
    error = ValueError("of the native function")

    def fail(*_: object) -> None:
        raise error

    op, args = watched.over(fail), arguments()
    for _ in range(6):
        with pytest.raises(ValueError, match="of the native function") as raised:
            op(*args)
        assert raised.value is error
    assert (eager(slot()), slot().events, slot().probe_errors) == ({16: 6}, {}, 0)


@pytest.mark.parametrize("args", [[], arguments()[:-1], [*arguments(), 1], [object()] * 25])
def test_arguments_that_are_not_understood_reach_the_native_function(
    watched: Watched, slot: Callable[[], SlotView], args: list[Any]
) -> None:
    reached: list[tuple[Any, ...]] = []
    watched.over(lambda *given: reached.append(given))(*args)
    (given,) = reached
    assert all(one is other for one, other in zip(given, args, strict=True))
    assert (slot().rows, slot().probe_errors) == ([], 1)


def test_no_tensor_is_kept_alive(watched: Watched) -> None:
    op, args = watched.over(lambda *_: None), arguments()
    kept = [weakref.ref(arg) for arg in args if isinstance(arg, torch.Tensor)]
    for _ in range(6):
        op(*args)
    with watched.meetings.capture():
        op(*args)
    del args
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)


def test_mla_is_counted_by_what_it_has(meetings: Meetings, slot: Callable[[], SlotView]) -> None:
    watched = Watched(meetings, MLA)
    op, workspace = watched.over(lambda *_: None), torch.zeros(64 * MIB, dtype=torch.uint8)
    for batch in (4, 5) * 10:
        op(*arguments(MLA, workspace, batch=batch))
    assert eager(slot()) == {4: 10, 5: 10}
    assert watched.ledger_calls == 2 * 4
    (row, _) = slot().rows
    assert (row.shape.heads, row.shape.qk, row.shape.vo, row.shape.q_len) == (128, 576, 512, 1)
