"""Slots as a reader tells of them, made by hand: what no real one shows for certain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from slot_worker import DECODE

from ws_guard.board import LastCalls, SlotView
from ws_guard.board.format import pack_run

if TYPE_CHECKING:
    from ws_guard.board import LastCall, Outcome, Row


def view(rows: list[Row], calls: list[LastCall] | None = None) -> SlotView:
    return SlotView(
        name="1.slot",
        pid=1,
        alive=True,
        closed=False,
        attached_ns=time.time_ns(),
        document={"ops": [DECODE], "workspaces": ["ws0"], "layout": "B"},
        rows=rows,
        events={},
        probe_errors=0,
        last_overflow_ns=0,
        last_overrun_ns=0,
        calls=last_calls(calls or []),
    )


def last_calls(calls: list[LastCall]) -> LastCalls:
    """As a ring tells them; its clock has ticks of 1,024 ns."""
    words = [
        pack_run(call.at_ns, row, cast("Outcome", call.outcome))  # it may be one that nobody knows
        for row, call in enumerate(calls)
    ]
    return LastCalls(words, {row: call.shape for row, call in enumerate(calls)})
