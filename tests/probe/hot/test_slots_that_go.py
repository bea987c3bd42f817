"""A slot that is let go of is unmapped: an address of it that was kept would end the process."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
from fresh_python import python
from hot_paths import FIRST
from native_calls import decode_arguments, nothing, workspace
from slot_views import ReadSlots, eager_by_batch

from ws_guard.board.format import Header

if TYPE_CHECKING:
    from native_calls import Watched

    from ws_guard.probe.recorder import Recorder


def test_a_slot_that_goes_is_never_written_again(
    watched: Watched, recorder: Recorder, slots: ReadSlots
) -> None:
    """Its memory is unmapped: an address that was kept would end the process."""
    op, arguments = watched.over(nothing), decode_arguments(16, workspace())
    for _ in range(20):
        for _ in range(FIRST):
            op(*arguments)
        recorder.forget_slot()
    for _ in range(FIRST):
        op(*arguments)
    assert [eager_by_batch(told) for told in slots()] == [{16: FIRST}] * 21
    recorder.close(keep_evidence=False)
    for _ in range(FIRST):
        op(*arguments)


#: The beginning of programs that end with their process, should the memory of a slot be touched.
STAGE = """
import sys, threading
from benchmarks.instructions import arguments
from benchmarks.probe import WHERE, OP
from ws_guard.board import Board
from ws_guard.probe.ledger import Ledger
from ws_guard.probe.native_op import instrument
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import LAYOUTS, OPS

calls, arguments = [], arguments(64)

def set_up():
    global recorder, ledger, op
    recorder = Recorder(Board(sys.argv[1]), LAYOUTS["C"], list(OPS.values()), {})
    ledger = Ledger(recorder, OP)
    op = instrument(lambda *args: calls.append(args), WHERE, ledger)

def call(times):
    for _ in range(times):
        op(*arguments)
"""

IN_BETWEEN = """
class Rows(dict):
    def clear(self):
        raise OSError("no memory")

set_up()
recorder.on_new_slot.insert(0, lambda: call(8))
call(8)
ledger._rows = Rows(ledger._rows)
recorder.close(keep_evidence=False)
call(8)
print(len(calls))
"""


def test_a_call_amid_a_change_of_slots_holds_on_to_none(board: str) -> None:
    """Another thread's call may come at any point, and whoever lets go of a slot may fail."""
    # 8 before, 8 amid, and 8 after the close.
    assert python(STAGE + IN_BETWEEN, board)[0] == "24"


TRACED = """
def close():
    other = threading.Thread(target=recorder.close, kwargs={"keep_evidence": False})
    other.start()
    other.join()

def trace(frame, event, _told):
    global seen
    if frame.f_code is Ledger.follow.__code__ and event == "line":
        seen += 1
        if seen == line:
            close()
    return trace

for line in range(1, 12):
    seen = 0
    set_up()
    call(4)
    sys.settrace(trace)
    op(*arguments)
    sys.settrace(None)
    call(8)
    recorder.close(keep_evidence=False)
print(len(calls))
"""


def test_a_slot_that_goes_amid_a_traced_line_is_never_written_again(board: str) -> None:
    """Under a debugger or a profiler in Python other threads run between any two lines."""
    # 4 + 1 + 8 calls for each of 11 lines.
    assert python(STAGE + TRACED, board)[0] == "143"


def test_addresses_are_those_of_the_words(recorder: Recorder) -> None:
    slot = recorder.slot
    address = slot.address_of(Header.PID)
    assert ctypes.c_uint64.from_address(address).value == os.getpid()


def test_a_fork_amid_the_look_for_an_address_leaves_the_slot_behind(recorder: Recorder) -> None:
    """Another thread may fork there: its child has to let go of the slot and of its file."""
    slot, children = recorder.slot, []

    def fork(frame: Any, event: str, _told: object) -> None:
        if frame.f_code is not type(slot).address_of.__code__ or not event.startswith("c_"):
            return
        sys.setprofile(None)
        child = os.fork()
        if not child:
            status = 1
            try:
                recorder.forget_slot()
                files = [
                    os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                ]
                status = any(each.endswith(".slot") for each in files)
            finally:
                os._exit(status)
        children.append(os.waitpid(child, 0)[1])
        sys.setprofile(fork)

    sys.setprofile(fork)
    try:
        slot.address_of(Header.PID)
    finally:
        sys.setprofile(None)
    assert children
    assert not any(children)
