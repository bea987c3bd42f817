"""The wrapper around XQA's native ops: what the hot path counts of them, and what it leaves."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from native_calls import nothing
from slot_views import ReadSlot, eager_by_batch
from xqa_native_calls import MIB, MLA, WatchedXqa, xqa_arguments, xqa_workspace

from ws_guard.board import OVERRUN

if TYPE_CHECKING:
    from collections.abc import Callable

    from meetings import Meetings


@pytest.fixture
def meetings(meet: Callable[..., Meetings]) -> Meetings:
    return meet("C")


@pytest.fixture
def watched(meetings: Meetings) -> WatchedXqa:
    return WatchedXqa(meetings)


def test_the_hot_path_counts_from_the_fifth_call_on(watched: WatchedXqa, slot: ReadSlot) -> None:
    op, args = watched.over(lambda *_: "the result"), xqa_arguments()
    for _ in range(1000):
        assert op(*args) == "the result"
    assert eager_by_batch(slot()) == {16: 1000}
    # The first four are looked at, and what is learned from the fourth counts the fifth.
    assert watched.ledger_calls == 4
    assert slot().probe_errors == 0


def test_shapes_in_turn_leave_the_ledger_alone(watched: WatchedXqa, slot: ReadSlot) -> None:
    op, workspace = watched.over(nothing), xqa_workspace()
    steps = [xqa_arguments(workspace=workspace, batch=batch) for batch in (16, 20, 24)]
    for _ in range(100):
        for step in steps:
            op(*step)
    assert eager_by_batch(slot()) == {16: 100, 20: 100, 24: 100}
    assert watched.ledger_calls == 3 * 4


def test_views_made_anew_are_the_same_workspace(watched: WatchedXqa, slot: ReadSlot) -> None:
    op, workspace = watched.over(nothing), xqa_workspace()
    for _ in range(20):
        op(*xqa_arguments(workspace=workspace))
    assert eager_by_batch(slot()) == {16: 20}
    assert watched.ledger_calls == 4
    assert slot().document["workspaces"] == ["ws0"]


@pytest.mark.parametrize(
    "change",
    [{"nbKHeads": 4}, {"qSeqLen": 2}, {"batchSize": 17}, {"workspace": 32 * MIB}],
    ids=lambda change: next(iter(change)),
)
def test_a_change_is_another_shape(
    watched: WatchedXqa, slot: ReadSlot, change: dict[str, int]
) -> None:
    op, workspace = watched.over(nothing), xqa_workspace()
    size = change.pop("workspace", 64 * MIB)
    for _ in range(10):
        op(*xqa_arguments(workspace=workspace))
        op(*xqa_arguments(workspace=workspace[:size], **change))
    assert sorted(row.eager for row in slot().rows) == [10, 10]


def test_two_modules_are_told_apart_by_their_function(watched: WatchedXqa, slot: ReadSlot) -> None:
    workspace = xqa_workspace()
    ops = [watched.over(lambda *_: None) for _ in range(2)]
    # As modules of other head dimensions: nothing else of the call says so on the hot path.
    steps = [
        xqa_arguments(workspace=workspace, q=torch.empty(16, 1, 64, dim, device="meta"))
        for dim in (64, 128)
    ]
    for _ in range(10):
        for op, step in zip(ops, steps, strict=True):
            op(*step)
    assert sorted((row.shape.qk, row.eager) for row in slot().rows) == [(64, 10), (128, 10)]


def test_an_overrun_is_judged_call_by_call(watched: WatchedXqa, slot: ReadSlot) -> None:
    # 16 CTAs for each of 8 KV heads: 256 bytes of statistics and 2,048 of output each, 294,912.
    op = watched.over(nothing)
    workspace = xqa_workspace(8 * MIB + 294_912 - 1)
    for tokens in (256, 32_768, 256, 32_768, 256):
        op(*xqa_arguments(workspace=workspace, batch=1, tokens=tokens))
    assert eager_by_batch(slot()) == {1: 5}
    assert slot().events == {(4, OVERRUN, "observed"): 2}
    # One byte more holds it.
    enough = xqa_workspace(8 * MIB + 294_912)
    op(*xqa_arguments(workspace=enough, batch=1, tokens=32_768))
    assert slot().events == {(4, OVERRUN, "observed"): 2}


def test_tokens_of_a_ragged_query(watched: WatchedXqa, slot: ReadSlot) -> None:
    """As 0.7.4 has it: where the lengths stand one argument more tells that the query is ragged."""
    one_more = watched.where.arguments
    watched.where = watched.where._replace(arguments=one_more + 1, ragged=one_more)
    op, lengths = watched.over(nothing), torch.empty(2, device="meta")

    def step(workspace: torch.Tensor, tokens: int) -> None:
        query = torch.empty(tokens, 64, 128, device="meta")
        changes = {"q": query, "batch": 1, "qSeqLen": 4, "tokens": 32_768}
        op(*xqa_arguments(workspace=workspace, **changes), lengths)

    roomy = xqa_workspace()
    for tokens in range(1, 5):
        for _ in range(10):
            step(roomy, tokens)
    # They are one shape: what may go wrong is judged call by call.
    assert watched.ledger_calls == 4
    # 16 CTAs for each of 8 KV heads: 256 bytes of statistics and 32 rows of 256 bytes each,
    # 1,081,344. It is certain that all of it is written where no token is missing.
    tight = xqa_workspace(8 * MIB + 1_081_344 - 1)
    for tokens in (3, 4, 3, 4):
        step(tight, tokens)
    assert sorted(row.eager for row in slot().rows) == [4, 40]
    assert slot().events == {(4, OVERRUN, "observed"): 2}


def test_the_fp8_kernel_of_hopper_is_never_certain(watched: WatchedXqa, slot: ReadSlot) -> None:
    op, workspace = watched.over(nothing), xqa_workspace(8 * MIB + 16)
    op(*xqa_arguments(workspace=workspace, batch=1, tokens=32_768, run_sm90_fp8_mha=True))
    assert (eager_by_batch(slot()), slot().events) == ({1: 1}, {})


def test_calls_in_a_capture_are_counted_as_captured(watched: WatchedXqa, slot: ReadSlot) -> None:
    op, args = watched.over(nothing), xqa_arguments()
    for _ in range(6):
        op(*args)
    with watched.meetings.capture():
        for _ in range(3):
            op(*args)
    op(*args)
    (row,) = slot().rows
    assert (row.eager, row.captured) == (7, 3)


def test_errors_of_the_native_function_pass(watched: WatchedXqa, slot: ReadSlot) -> None:
    error = ValueError("of the native function")

    def fail(*_: object) -> None:
        raise error

    op, args = watched.over(fail), xqa_arguments()
    for _ in range(6):
        with pytest.raises(ValueError, match="of the native function") as raised:
            op(*args)
        assert raised.value is error
    assert (eager_by_batch(slot()), slot().events, slot().probe_errors) == ({16: 6}, {}, 0)


@pytest.mark.parametrize("args", [[], xqa_arguments()[:-1], [*xqa_arguments(), 1], [object()] * 25])
def test_arguments_that_are_not_understood_reach_the_native_function(
    watched: WatchedXqa, slot: ReadSlot, args: list[Any]
) -> None:
    reached: list[tuple[Any, ...]] = []
    watched.over(lambda *given: reached.append(given))(*args)
    (given,) = reached
    assert all(one is other for one, other in zip(given, args, strict=True))
    assert (slot().rows, slot().probe_errors) == ([], 1)


def test_no_tensor_is_kept_alive(watched: WatchedXqa) -> None:
    op, args = watched.over(nothing), xqa_arguments()
    kept = [weakref.ref(arg) for arg in args if isinstance(arg, torch.Tensor)]
    for _ in range(6):
        op(*args)
    with watched.meetings.capture():
        op(*args)
    del args
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)


def test_mla_is_counted_by_what_it_has(meetings: Meetings, slot: ReadSlot) -> None:
    watched = WatchedXqa(meetings, MLA)
    op, workspace = watched.over(nothing), xqa_workspace()
    for batch in (4, 5) * 10:
        op(*xqa_arguments(MLA, workspace, batch=batch))
    assert eager_by_batch(slot()) == {4: 10, 5: 10}
    assert watched.ledger_calls == 2 * 4
    (row, _) = slot().rows
    assert (row.shape.heads, row.shape.qk, row.shape.vo, row.shape.q_len) == (128, 576, 512, 1)
