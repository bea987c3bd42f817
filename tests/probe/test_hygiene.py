"""Uses of a workspace that are known to end badly, told once each in /health."""

from __future__ import annotations

from typing import TYPE_CHECKING

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from meetings import CONTEXT, DECODE, MIB, XQA, health, on_card
from slot_views import ReadSlot

if TYPE_CHECKING:
    from collections.abc import Callable

    from meetings import Meetings

    Meet = Callable[..., Meetings]


def zeroed(size: int = 64 * MIB) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def shown(board: str) -> list[str]:
    (worker,) = health(board)["workers"]
    warnings: list[str] = worker["warnings"]
    return warnings


def test_two_families_on_one_buffer(meet: Meet, board: str) -> None:
    meetings, buffer = meet("C"), zeroed()
    meetings.call(buffer, DECODE)
    assert meetings.warnings == []
    for _ in range(3):
        meetings.call(buffer, XQA, lse=False)
    expected = (
        f"ws0: shared by {DECODE} and {XQA}, whose counters do not know of each other; "
        "reports: hangs and wrong output. Give each its own workspace"
    )
    assert meetings.warnings == [expected]
    assert shown(board) == [expected]


def test_two_families_on_buffers_of_their_own(meet: Meet) -> None:
    meetings = meet("C")
    meetings.call(zeroed(), DECODE)
    meetings.call(zeroed(), XQA, lse=False)
    assert meetings.warnings == []


@pytest.mark.parametrize("first", [DECODE, CONTEXT])
def test_statistics_where_a_counter_stands(meet: Meet, board: str, first: str) -> None:
    # Layout B: decode's counter is at the head, context's statistics are.
    meetings, buffer = meet("B"), zeroed()
    for op in (DECODE, CONTEXT) if first == DECODE else (CONTEXT, DECODE):
        meetings.call(buffer, op)
    expected = (
        f"ws0: {CONTEXT} writes softmax_stats where {DECODE} keeps counters that must be zero "
        "between calls; reports: hangs and wrong output. Give each its own workspace"
    )
    assert shown(board) == meetings.warnings == [expected]


@pytest.mark.parametrize(("layout", "lse"), [("C", True), ("C", False), ("B", False)])
def test_what_carves_nothing_that_clashes(meet: Meet, layout: str, lse: bool) -> None:
    # Layout C keeps the counter elsewhere; a context without LSE carves nothing.
    meetings, buffer = meet(layout), zeroed()
    meetings.call(buffer, DECODE)
    meetings.call(buffer, CONTEXT, lse=lse)
    assert meetings.warnings == []


def test_two_streams(meet: Meet, board: str) -> None:
    meetings, buffer = meet("C"), on_card()
    meetings.call(buffer)
    assert meetings.warnings == []
    meetings.stream = "side"
    meetings.call(buffer)
    meetings.stream = "main"
    meetings.call(buffer)
    expected = (
        "ws0: used from 2 streams; calls that overlap share counters and slabs; reports: hangs "
        "and wrong output. Give each stream its own workspace"
    )
    assert shown(board) == meetings.warnings == [expected]


def test_a_buffer_for_each_stream(meet: Meet) -> None:
    meetings = meet("C")
    for stream in ("main", "side"):
        meetings.stream = stream
        meetings.call(on_card())
    assert meetings.warnings == []


def test_a_warm_up_on_the_stream_that_is_captured_is_forgiven(
    meet: Meet, caplog: pytest.LogCaptureFixture
) -> None:
    meetings, buffer = meet("C"), on_card()
    meetings.call(buffer)
    meetings.stream = "side"
    meetings.call(buffer)
    (warned,) = meetings.warnings
    with meetings.capture():
        meetings.call(buffer)
    assert meetings.warnings == []
    # Two streams that were never captured are two still.
    meetings.stream = "third"
    meetings.call(buffer)
    assert meetings.warnings == [warned]
    # The log tells as much.
    told = [message.partition(": ")[2] for message in caplog.messages]
    assert told == [warned, f"taken back: {warned}", warned]


def test_tensors_without_a_stream_share_none(meet: Meet) -> None:
    meetings, buffer = meet("C"), zeroed()
    for meetings.stream in ("main", "side"):
        meetings.call(buffer)
    assert meetings.warnings == []


def test_a_call_that_says_more_than_its_buffer_has(meet: Meet, board: str) -> None:
    meetings = meet("C")
    meetings.call(zeroed(8 * MIB), says_bytes=394 * MIB)
    expected = (
        "ws0: the call says 413,138,944 bytes, its buffer has 8,388,608: slabs carved behind its "
        "end overwrite other memory, and nobody checks. Pass the buffer that the size belongs to"
    )
    assert shown(board) == meetings.warnings == [expected]


@pytest.mark.parametrize("says_bytes", [8 * MIB, 4 * MIB])
def test_a_call_that_says_no_more_than_its_buffer_has(meet: Meet, says_bytes: int) -> None:
    meetings = meet("C")
    meetings.call(zeroed(8 * MIB), says_bytes=says_bytes)
    assert meetings.warnings == []


@pytest.mark.parametrize(
    ("layout", "op", "dirty_at", "warned"),
    [
        # Layout B's counter takes the first 8 MiB, whatever the call.
        ("B", DECODE, 0, True),
        ("B", DECODE, 8 * MIB - 1, True),
        ("B", DECODE, 8 * MIB, False),
        # Layout C's is a buffer of its own.
        ("C", DECODE, 0, False),
        # XQA's semaphores are there whatever the layout.
        ("C", XQA, 8 * MIB - 1, True),
        ("C", XQA, 8 * MIB, False),
        # No counter in a context's workspace.
        ("B", CONTEXT, 0, False),
    ],
)
def test_a_dirty_counter(
    meet: Meet, board: str, layout: str, op: str, dirty_at: int, warned: bool
) -> None:
    meetings, buffer = meet(layout), zeroed()
    buffer[dirty_at] = 1
    meetings.call(buffer, op, lse=False)
    expected = (
        "ws0: its counter was not zero at the first call seen; reports: reductions that never end "
        "(hangs) and wrong output. Allocate it zeroed, and let nothing else write there"
    )
    assert shown(board) == meetings.warnings == ([expected] if warned else [])


def test_a_zeroed_counter_is_looked_at_once(meet: Meet) -> None:
    meetings, buffer = meet("B"), zeroed()
    meetings.call(buffer)
    # Between calls a counter is zero again, during them it is not: later looks would be wrong.
    buffer[0] = 1
    meetings.call(buffer, batch=17)
    assert meetings.warnings == []
    # Another op that keeps one there is told of, and does not look either.
    meetings.call(buffer, XQA, lse=False)
    (warning,) = meetings.warnings
    assert warning.startswith(f"ws0: shared by {DECODE} and {XQA}")


def test_no_counter_is_looked_at_while_a_graph_is_captured(meet: Meet) -> None:
    meetings, buffer = meet("B"), zeroed()
    buffer[0] = 1
    with meetings.capture():
        meetings.call(buffer)
    assert meetings.warnings == []


def test_no_counter_is_looked_at_while_another_thread_captures(meet: Meet) -> None:
    # The look takes pinned memory, which ends a capture in the default mode, whoever's it is.
    meetings, buffer = meet("B"), zeroed()
    buffer[0] = 1
    meetings.parts.graphs.is_capturing = lambda: False
    with meetings.capture():
        meetings.stream = "elsewhere"
        meetings.call(buffer)
    assert meetings.warnings == []


def test_a_failure_in_here_leaves_the_account_whole(
    meet: Meet, slot: ReadSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    meetings, buffer = meet("B"), zeroed()

    def fail(*_: object) -> None:
        raise ValueError("on purpose")

    monkeypatch.setattr(type(meetings.parts.hygiene), "_check_counter", fail)
    for _ in range(3):
        assert meetings.call(buffer) is buffer
    ((row,), errors) = slot().rows, slot().probe_errors
    assert (row.shape.batch, row.eager, errors) == (16, 3, 3)


def test_uses_beyond_the_limit_are_not_remembered(
    meet: Meet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ws_guard.probe.hygiene._MAX_USES", 1)
    meetings = meet("B")
    meetings.call(zeroed())
    dirty = zeroed()
    dirty[0] = 1
    meetings.call(dirty)
    assert meetings.warnings == []
