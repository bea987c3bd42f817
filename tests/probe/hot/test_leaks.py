"""No call leaves a reference or memory behind.

A million calls with WS_GUARD_NIGHTLY=1 (`make nightly`), 20,000 otherwise.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from typing import TYPE_CHECKING

import flashinfer_needed  # noqa: F401 - skips this file without it
from hot_paths import FIRST, in_c_alone
from native_calls import decode_arguments, workspace

from ws_guard.probe import hot

if TYPE_CHECKING:
    from native_calls import Watched

    from ws_guard.probe.recorder import Recorder

CALLS = 1_000_000 if os.environ.get("WS_GUARD_NIGHTLY") == "1" else 20_000


def test_nothing_is_kept_alive(watched: Watched) -> None:
    class Native:
        def __call__(self, *_args: object) -> None:
            pass

    native = Native()
    gone = weakref.ref(native)
    op, arguments = watched.over(native), decode_arguments(16, workspace())
    buffer = weakref.ref(arguments[watched.at("workspace_buffer")])
    for _ in range(FIRST):
        op(*arguments)
    del arguments
    assert buffer() is None
    del op, native
    gc.collect()
    # The lane still knows whose run it was, and compares with nobody.
    assert gone() is None


def test_many_calls_leave_nothing_behind(watched: Watched, recorder: Recorder) -> None:
    """No reference and no memory, whether runs go on, change or begin anew."""
    op, result = watched.over(lambda *args: args[0]), object()
    steps = [decode_arguments(batch, workspace()) for batch in (16, 17)]
    for arguments in steps:
        arguments[0] = result
        for _ in range(FIRST):
            op(*arguments)
    held = [result, op, recorder.slot.next_place, *(each for args in steps for each in args)]

    def make(calls: int) -> None:
        for number in range(calls):
            op(*steps[number // 3 % 2])
            if number % 64 == 0:
                watched.ledger.end_run()

    make(1_100)  # round the ring once, which keeps the numbers of its places
    references = [sys.getrefcount(each) for each in held]
    blocks = sys.getallocatedblocks()
    make(CALLS)
    assert [sys.getrefcount(each) for each in held] == references
    assert abs(sys.getallocatedblocks() - blocks) < 100


@in_c_alone
def test_shapes_without_end_take_no_memory_without_end() -> None:
    lane, owner = hot.Lane(), object()
    rest = (1, 1, (0, 0, 0, 0, 0, iter(()).__next__))
    blocks = sys.getallocatedblocks()
    for batch in range(200_000):
        lane.follow(0, owner, (batch, 1, 1 << 28, 0), True, (64, 64, 576, 1 << 20), *rest)
    # As many as there are places, and a hash that fills them.
    assert 60_000 < sys.getallocatedblocks() - blocks < 66_000
    lane.forget()
    assert sys.getallocatedblocks() - blocks < 100
