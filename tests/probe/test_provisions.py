"""Who is given a workspace of ours, who is not, and what the board says of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from meetings import CONTEXT, DECODE, MIB, Meetings, OnCard, on_card
from native_calls import decode_arguments, watch
from slot_views import ReadSlot

from ws_guard import WorkspaceOverflowError
from ws_guard.board import OVERFLOW
from ws_guard.probe.provisions import Provision, allocate

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard import Plan
    from ws_guard.probe.recorder import Recorder

    Meet = Callable[..., Meetings]
    Offer = Callable[..., Provision]

SMALL, LARGE = 16 * MIB, 64 * MIB


@pytest.fixture
def meet(meet: Meet) -> Meet:
    """`meet(action)`: ledgers whose zones nobody looks at."""
    return functools.partial(meet, "C", interval=3600.0)


@pytest.fixture
def offer(plan: Plan) -> Offer:
    """`offer(meetings)`: one more provision for the callers to come."""

    def add(meetings: Meetings, size: int = LARGE) -> Provision:
        provision = allocate(plan, "cpu", size, MIB)
        meetings.parts.provisions.add(provision)
        return provision

    return add


def buffer(size: int = SMALL) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def is_ours(given: torch.Tensor, provision: Provision) -> bool:
    return (given.data_ptr(), given.numel()) == (provision.address, provision.bytes)


def test_a_smaller_workspace_is_replaced_from_the_first_call_on(
    meet: Meet, offer: Offer, slot: ReadSlot
) -> None:
    meetings = meet()
    ours = offer(meetings)
    own = buffer()
    for batch in (16, 16, 20, 16, 16, 16, 16):
        assert is_ours(meetings.call(own, batch=batch), ours)
    # Counts and sizes are told under the caller's name; the hot path, which would make the call as
    # it came, learns nothing.
    found = slot()
    rows = {row.shape.batch: (row.shape.workspace_bytes, row.eager) for row in found.rows}
    assert rows == {16: (LARGE, 6), 20: (LARGE, 1)}
    assert found.document["workspaces"] == ["ws0"]
    assert {row.shape.workspace for row in found.rows} == {0}
    assert (meetings.learned(), found.probe_errors, meetings.reports) == (0, 0, [])


def test_one_for_each_caller(meet: Meet, offer: Offer) -> None:
    meetings = meet()
    first = offer(meetings)
    own, others = buffer(), buffer()
    assert is_ours(meetings.call(own), first)
    for _ in range(6):
        assert meetings.call(others) is others
    assert meetings.learned() == 1
    # What the hot path has learned meanwhile is looked at again.
    second = offer(meetings)
    assert is_ours(meetings.call(others), second)
    assert is_ours(meetings.call(own), first)


def test_ops_that_share_a_buffer_are_two_callers(meet: Meet, offer: Offer) -> None:
    meetings = meet()
    first, own = offer(meetings), buffer()
    assert is_ours(meetings.call(own, DECODE), first)
    assert meetings.call(own, CONTEXT) is own
    second = offer(meetings)
    assert is_ours(meetings.call(own, CONTEXT), second)
    assert is_ours(meetings.call(own, DECODE), first)


@pytest.mark.parametrize("size", [LARGE, LARGE + 1])
def test_a_workspace_that_is_large_enough_is_left_alone(
    meet: Meet, offer: Offer, size: int
) -> None:
    meetings = meet()
    ours, own = offer(meetings), buffer(size)
    assert meetings.call(own) is own
    # It stays there for one that is smaller.
    assert is_ours(meetings.call(buffer(LARGE - 1)), ours)


def test_the_first_one_that_is_larger_is_given(meet: Meet, offer: Offer) -> None:
    meetings = meet()
    small, large = offer(meetings, 2 * SMALL), offer(meetings, LARGE)
    # Both are kept: a caller is known by its address, which the second might get anew.
    larger, smaller = buffer(3 * SMALL), buffer()
    assert is_ours(meetings.call(larger), large)
    assert is_ours(meetings.call(smaller), small)


def test_a_caller_that_passes_ours_itself_is_left_alone(
    meet: Meet, offer: Offer, slot: ReadSlot
) -> None:
    meetings = meet()
    first, second = offer(meetings), offer(meetings, 2 * LARGE)
    # `second` is larger and free; who has one of ours is not given another.
    assert meetings.call(first.workspace) is first.workspace
    assert is_ours(meetings.call(buffer()), first)
    assert second.bytes == 2 * LARGE
    (own, other) = slot().rows
    assert (own.shape.workspace_bytes, other.shape.workspace_bytes) == (LARGE, LARGE)


def test_another_buffer_at_a_known_address_is_judged_by_its_own_size(
    meet: Meet, offer: Offer
) -> None:
    meetings = meet()
    ours, memory = offer(meetings), buffer(2 * LARGE)
    assert is_ours(meetings.call(memory[:SMALL]), ours)
    # The small one is gone, and a larger one stands where it stood.
    assert meetings.call(memory) is memory
    assert meetings.learned() == 0


def test_a_caller_on_another_device_keeps_its_own(meet: Meet, offer: Offer) -> None:
    class Elsewhere(torch.Tensor):
        device = torch.device("cuda", 1)

    meetings = meet()
    ours, own = offer(meetings), buffer().as_subclass(Elsewhere)
    assert meetings.call(own) is own
    assert is_ours(meetings.call(buffer()), ours)


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32])
def test_the_replacement_has_the_callers_type(
    plan: Plan, dtype: torch.dtype, spare: int, recorder_of: Callable[[str], Recorder]
) -> None:
    """A size that is no whole number of the type's elements is as good as another."""
    watched = watch(recorder_of("C"))
    given: list[tuple[Any, ...]] = []
    op = watched.over(lambda *args: given.append(args))
    parts = watched.ledger._parts
    ours = allocate(plan, "cpu", LARGE + spare, MIB)
    parts.provisions.add(ours)
    try:
        arguments = decode_arguments(16, buffer().view(dtype))
        arguments[watched.at("workspace_size")] = SMALL
        op(*arguments)
    finally:
        parts.ticker.stop()
    (args,) = given
    workspace = args[watched.at("workspace_buffer")]
    assert (workspace.dtype, workspace.data_ptr()) == (dtype, ours.address)
    assert args[watched.at("workspace_size")] == LARGE + spare
    assert workspace.nbytes == (LARGE if dtype == torch.int32 else LARGE + spare)


# -- graphs and streams ----------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the provision", "after the provision"])
def test_never_after_a_capture_with_the_old_address(meet: Meet, offer: Offer, when: str) -> None:
    # All alive to the end: a caller is known by the address of its buffer.
    meetings, own, others, anothers = meet(), buffer(), buffer(), buffer()
    if when == "after the provision":
        first = offer(meetings)
        assert is_ours(meetings.call(others), first)
    with meetings.capture():
        assert meetings.call(own) is own
    second = offer(meetings)
    for _ in range(3):
        assert meetings.call(own) is own
    assert meetings.reports[0] == (
        f"{DECODE} keeps its own workspace: a graph was captured with it already"
    )
    # It is there for a caller of whom there is no doubt.
    assert is_ours(meetings.call(anothers), second)


def test_a_first_call_in_a_capture_is_given_one(meet: Meet, offer: Offer) -> None:
    meetings, own = meet(), buffer()
    ours = offer(meetings)
    with meetings.capture():
        assert is_ours(meetings.call(own), ours)
    assert is_ours(meetings.call(own), ours)
    with meetings.capture():
        assert is_ours(meetings.call(own), ours)


def test_a_second_stream_keeps_the_callers_own(meet: Meet, offer: Offer) -> None:
    meetings = meet()
    ours, own = offer(meetings), on_card(SMALL)
    assert is_ours(meetings.call(own), ours)
    meetings.stream = "side"
    for _ in range(6):
        assert meetings.call(own) is own
    assert meetings.reports == [
        f"{DECODE} calls from a second stream: there it keeps its own workspace"
    ] * len(meetings.reports)
    assert meetings.reports
    # The hot path sees no streams: it must not have learned what the second one does.
    assert meetings.learned() == 0
    meetings.stream = "main"
    assert is_ours(meetings.call(own), ours)


def test_the_stream_of_a_capture_is_no_second_one(meet: Meet, offer: Offer) -> None:
    meetings = meet()
    ours, own = offer(meetings), on_card(SMALL)
    assert is_ours(meetings.call(own), ours)
    meetings.stream = "side"
    with meetings.capture():
        assert is_ours(meetings.call(own), ours)
    # Further warm-ups there are no doubt to report, and no reason to share either.
    assert isinstance(meetings.call(own), OnCard)
    assert meetings.reports == []


# -- at the edge -----------------------------------------------------------------------------------


def test_one_that_is_too_small_as_well_is_raised_about(
    meet: Meet, offer: Offer, slot: ReadSlot
) -> None:
    meetings = meet("raise")
    offer(meetings)
    with pytest.raises(WorkspaceOverflowError) as raised:
        meetings.call(buffer(), batch=1024)
    error = raised.value
    # 8 bytes x 64 heads x 1,024 rows x 256 + 1 MiB of 64 MiB, under the caller's name.
    assert (error.workspace, error.workspace_bytes) == ("ws0", LARGE)
    assert (error.slab_bytes, error.available_bytes) == (135_266_304, LARGE)
    assert slot().document["workspaces"] == ["ws0"]
    assert slot().events == {(0, OVERFLOW, "raised"): 1}
    assert meetings.made == []


def test_one_that_is_large_enough_is_not(meet: Meet, offer: Offer, slot: ReadSlot) -> None:
    meetings = meet("raise")
    ours = offer(meetings, 256 * MIB)
    assert is_ours(meetings.call(buffer(), batch=1024), ours)
    assert slot().events == {}
