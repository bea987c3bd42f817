"""The hot path in C: the same counts as Python's, and nothing that can crash the process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from native_calls import MIB, Watched, decode_arguments, watch, workspace  # noqa: E402

from ws_guard.board import Shape  # noqa: E402
from ws_guard.board.format import Header  # noqa: E402
from ws_guard.probe import hot  # noqa: E402
from ws_guard.probe.ledger import Ledger  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.board import SlotView
    from ws_guard.probe.recorder import Recorder

in_c_alone = pytest.mark.skipif(
    not hot.is_built(), reason="the extension was not built: `python hatch_build.py` says why"
)
#: Calls of a shape after which the hot path counts by itself.
FIRST = 6


def test_the_extension_is_built_where_it_can_be() -> None:
    if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
        assert hot.is_built(), "run `python hatch_build.py` to see why"
    elif not hot.is_built():
        pytest.skip("the extension was not built: `python hatch_build.py` says why")


@pytest.fixture(params=["in C", "in Python"])
def built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every test runs with the extension and without."""
    if request.param == "in C":
        if not hot.is_built():
            pytest.skip("the extension was not built: `python hatch_build.py` says why")
        return True
    monkeypatch.setattr(hot, "_hot", None)
    monkeypatch.setattr(hot, "Lane", hot.PlainLane)
    return False


@pytest.fixture
def watched(built: bool, recorder: Recorder) -> Watched:  # noqa: ARG001 - chooses what is watched
    return watch(recorder)


def eager(slot: SlotView) -> dict[int, int]:
    return {row.shape.batch: row.eager for row in slot.rows}


def test_calls_like_the_run_never_reach_the_ledger(
    built: bool, watched: Watched, slot: Callable[[], SlotView], monkeypatch: pytest.MonkeyPatch
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
    assert eager(told) == {16: FIRST + 100}
    assert told.probe_errors == 0
    assert before - 10**6 <= told.calls[-1].at_ns <= time.time_ns() + 10**6


DIFFERENT: dict[str, Callable[[Watched, list[Any]], None]] = {
    "batch": lambda at, args: args.__setitem__(at.at("batch_size"), 17),
    "q_len": lambda at, args: args.__setitem__(at.at("max_q_len"), 2),
    "size": lambda at, args: args.__setitem__(at.at("workspace_size"), 300 * MIB),
    "lse": lambda at, args: args.__setitem__(at.at("lse"), None),
    "top_k": lambda at, args: args.__setitem__(at.at("sparse_mla_top_k"), 0),
    "heads": lambda at, args: args.__setitem__(
        at.at("query"), torch.empty(16, 32, 1152, device="meta")
    ),
    "workspace": lambda at, args: args.__setitem__(at.at("workspace_buffer"), workspace()),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_whatever_differs_is_another_shape(
    what: str, watched: Watched, slot: Callable[[], SlotView]
) -> None:
    """Heads and head dim change together, so that the tensor has as many elements as before."""
    op, arguments = watched.over(lambda *_args: None), decode_arguments(16, workspace())
    other = list(arguments)
    DIFFERENT[what](watched, other)
    for _ in range(FIRST):
        op(*arguments)
    for _ in range(3):
        op(*other)
        op(*arguments)
    assert sorted(row.eager for row in slot().rows) == [3, FIRST + 3]
    assert slot().probe_errors == 0


def test_another_view_of_the_same_memory_is_the_same_workspace(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    op, buffer = watched.over(lambda *_args: None), workspace()
    for _ in range(2 * FIRST):
        op(*decode_arguments(16, buffer[:]))
    assert [row.eager for row in slot().rows] == [2 * FIRST]


def test_the_native_error_comes_through_as_it_is(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    errors: list[Exception] = []

    def native(*_args: object) -> None:
        if errors:
            raise errors[0]

    op, arguments = watched.over(native), decode_arguments(16, workspace())
    for _ in range(FIRST):
        op(*arguments)
    errors.append(KeyError("of the kernel"))
    with pytest.raises(KeyError) as caught:
        op(*arguments)
    assert caught.value is errors[0]
    assert slot().events == {}
    # A refusal that nobody foresaw is counted, and that it was not foreseen.
    text = "Buffer overflow when allocating memory for trtllm_gen_softmax_workspace"
    errors[0] = RuntimeError(text)
    with pytest.raises(RuntimeError) as refused:
        op(*arguments)
    assert refused.value is errors[0]
    assert (list(slot().events.values()), slot().probe_errors) == ([1], 1)


@pytest.mark.parametrize("arguments", [[], [None] * 3, [None] * 40])
def test_wrong_arguments_reach_the_native_function(
    arguments: list[Any], watched: Watched, slot: Callable[[], SlotView]
) -> None:
    op = watched.over(lambda *args: args)
    for _ in range(FIRST):
        op(*decode_arguments(16, workspace()))
    assert op(*arguments) == tuple(arguments)
    assert slot().probe_errors == 1


def test_hostile_arguments_are_nobodys_business(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    class Nothing:
        shape = "no shape"

        def data_ptr(self) -> int:
            raise OSError("no memory")

    op, arguments = watched.over(lambda *args: len(args)), decode_arguments(16, workspace())
    for _ in range(FIRST):
        op(*arguments)
    for name in ("query", "workspace_buffer", "batch_size", "max_q_len", "workspace_size"):
        for value in (None, Nothing(), "text", 1.5, 1 << 200, torch.zeros(3)):
            wrong = list(arguments)
            wrong[watched.at(name)] = value
            assert op(*wrong) == len(arguments)
    op(*arguments)
    assert max(row.eager for row in slot().rows if row.shape.batch == 16) == FIRST + 1


def test_an_interrupt_amid_the_look_at_a_call_is_not_lost(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    """A signal's handler may run, and raise, where a tensor's class is written in Python."""

    class Interrupted:
        def __init__(self) -> None:
            self.interrupts = [KeyboardInterrupt()]

        @property
        def shape(self) -> Any:
            if self.interrupts:
                raise self.interrupts.pop()
            return arguments[watched.at("query")].shape

    calls: list[None] = []
    op = watched.over(lambda *_args: calls.append(None))
    arguments = decode_arguments(16, workspace())
    for _ in range(FIRST):
        op(*arguments)
    other = list(arguments)
    other[watched.at("query")] = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        op(*other)
    op(*other)
    assert len(calls) == FIRST + 1
    assert (eager(slot()), slot().probe_errors) == ({16: FIRST + 1}, 0)


def test_keyword_arguments_are_refused_as_by_the_native_function(watched: Watched) -> None:
    op = watched.over(lambda *_args: None)
    with pytest.raises(TypeError):
        op(*decode_arguments(16, workspace()), more=1)


def test_threads_lose_no_call(watched: Watched, slot: Callable[[], SlotView]) -> None:
    op = watched.over(lambda *_args: None)
    steps = [decode_arguments(batch, workspace()) for batch in (16, 17)]
    calls, threads = 5_000, 4
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def call() -> None:
        for number in range(calls):
            op(*steps[number // 7 % 2])

    try:
        running = [threading.Thread(target=call) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert sum(eager(slot()).values()) == calls * threads
    assert slot().probe_errors == 0


def test_a_slot_that_goes_is_never_written_again(
    watched: Watched, recorder: Recorder, slots: Callable[[], list[SlotView]]
) -> None:
    """Its memory is unmapped: an address that was kept would end the process."""
    op, arguments = watched.over(lambda *_args: None), decode_arguments(16, workspace())
    for _ in range(20):
        for _ in range(FIRST):
            op(*arguments)
        recorder.forget_slot()
    for _ in range(FIRST):
        op(*arguments)
    assert [eager(told) for told in slots()] == [{16: FIRST}] * 21
    recorder.close(keep_evidence=False)
    for _ in range(FIRST):
        op(*arguments)


IN_BETWEEN = """
import sys
from benchmarks.instructions import arguments
from benchmarks.probe import WHERE, OP
from ws_guard.board import Board
from ws_guard.probe.ledger import Ledger
from ws_guard.probe.native_op import instrument
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import LAYOUTS, OPS

class Rows(dict):
    def clear(self):
        raise OSError("no memory")

calls, arguments = [], arguments(64)
recorder = Recorder(Board(sys.argv[1]), LAYOUTS["C"], list(OPS.values()), {})
recorder.on_new_slot.append(lambda: [op(*arguments) for _ in range(8)])
ledger = Ledger(recorder, OP)
op = instrument(lambda *args: calls.append(args), WHERE, ledger)
for _ in range(8):
    op(*arguments)
ledger._rows = Rows(ledger._rows)
recorder.close(keep_evidence=False)
for _ in range(8):
    op(*arguments)
print(len(calls))
"""


def test_a_call_amid_a_change_of_slots_holds_on_to_none(board: str) -> None:
    """Another thread's call may come at any point, and whoever lets go of a slot may fail."""
    done = subprocess.run(
        [sys.executable, "-c", IN_BETWEEN, board],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "24\n"), done.stderr


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


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected between lines only")
def test_a_capture_that_begins_amid_a_garbage_collection_is_seen(
    built: bool, watched: Watched, slot: Callable[[], SlotView]
) -> None:
    """Up to Python 3.11 finalizers, and so other threads, run wherever an object is made."""
    op, arguments = watched.over(lambda *_args: None), decode_arguments(16, workspace())
    graph, begun = type("Graph", (), {})(), []

    def collecting(phase: str, _info: dict[str, int]) -> None:
        if phase == "start" and not begun and sys._getframe(1).f_code is Ledger.follow.__code__:
            begun.append(graph)
            other = threading.Thread(target=watched.graphs.begin_capture, args=(graph,))
            other.start()
            other.join()

    before, kept, calls = gc.get_threshold(), [], 0
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    try:
        while not begun and calls < 100:
            op(*arguments)
            calls += 1
            kept.append([calls])
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collecting)
    if not built:
        assert not begun  # what Python compares with is learned without making an object
        return
    assert begun
    for _ in range(3):
        op(*arguments)
    (row,) = slot().rows
    assert (row.eager, row.captured) == (calls, 3)


def test_two_modules_of_an_op_do_not_mix_their_runs(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    ops, arguments = (
        [watched.over(lambda *_args: None) for _ in range(2)],
        decode_arguments(16, workspace()),
    )
    for number in range(40):
        ops[number % 2](*arguments)
    assert eager(slot()) == {16: 40}


TRACED = """
import sys, threading
from benchmarks.instructions import arguments
from benchmarks.probe import WHERE, OP
from ws_guard.board import Board
from ws_guard.probe.ledger import Ledger
from ws_guard.probe.native_op import instrument
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import LAYOUTS, OPS

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

calls, arguments = [], arguments(64)
for line in range(1, 12):
    seen = 0
    recorder = Recorder(Board(sys.argv[1]), LAYOUTS["C"], list(OPS.values()), {})
    ledger = Ledger(recorder, OP)
    op = instrument(lambda *args: calls.append(args), WHERE, ledger)
    for _ in range(4):
        op(*arguments)
    sys.settrace(trace)
    op(*arguments)
    sys.settrace(None)
    for _ in range(8):
        op(*arguments)
    recorder.close(keep_evidence=False)
print(len(calls))
"""


def test_a_slot_that_goes_amid_a_traced_line_is_never_written_again(board: str) -> None:
    """Under a debugger or a profiler in Python other threads run between any two lines."""
    done = subprocess.run(
        [sys.executable, "-c", TRACED, board],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "143\n"), done.stderr


@in_c_alone
def test_a_lane_follows_nothing_told_before_it_forgot() -> None:
    lane, owner = hot.Lane(), object()
    lane.forget()
    before = sys.getrefcount(owner)
    blocks = sys.getallocatedblocks()
    place = iter(()).__next__
    held = sys.getrefcount(place)
    for batch in range(100):
        lane.follow(0, owner, (batch,), True, (), 1, 1, (0, 0, 0, 0, 0, place))
    assert sys.getallocatedblocks() - blocks < 50
    assert (sys.getrefcount(owner), sys.getrefcount(place)) == (before, held)
    lane.follow(lane.times_forgotten, owner, (1,), True, (), 1, 1, (0, 0, 0, 0, 0, place))
    assert sys.getrefcount(place) == held + 1


@in_c_alone
def test_a_lane_says_what_it_cannot_take() -> None:
    lane, rest = hot.Lane(), (0, 0, (0, 0, 0, 0, 0, iter(()).__next__))
    with pytest.raises(ValueError, match="more to compare"):
        lane.follow(0, object(), (1,) * 99, True, (), *rest)
    with pytest.raises(TypeError):
        lane.follow(0, object(), ("text",), True, (), *rest)
    with pytest.raises(OverflowError):
        lane.follow(0, object(), (1 << 200,), True, (), *rest)
    with pytest.raises(TypeError):
        lane.follow(0, object(), (1,), True, (), *rest[:-1])


@in_c_alone
@pytest.mark.parametrize("held", [(), ((((0, 1),), 0),)])
def test_an_account_that_holds_nothing_is_left_to_python(held: tuple[Any, ...]) -> None:
    """Where a slot came anew, and what a replay adds to it could not be worked out."""
    graph, account = type("Graph", (), {})(), hot.Account()
    for arguments in held:
        account.hold(*arguments)
        account.forget()
    graph._ws_guard_account = account
    account.is_current = 1
    assert not hot._hot.count_replay(graph)


def test_positions_beyond_the_arguments_are_refused(built: bool) -> None:
    places = hot.FrontPositions(2, (0, 7), 0, ((1, "shape"),))
    if not built:
        assert hot.in_front_of(len, len, len, hot.Lane(), places) is len
        return
    with pytest.raises(ValueError, match="position"):
        hot.in_front_of(len, len, len, hot.Lane(), places)


def test_addresses_are_those_of_the_words(recorder: Recorder) -> None:
    import ctypes

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


def test_known_shapes_in_turn_never_reach_the_ledger_and_each_begins_a_run(
    built: bool, watched: Watched, slot: Callable[[], SlotView], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = watched.over(lambda *_args: None)
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
    assert eager(told) == {16: FIRST + 8, 17: FIRST + 8, 18: FIRST + 8}
    assert [call.shape.batch for call in told.calls[-13:]] == [18, *[16, 17, 18] * 4]
    moments = [call.at_ns for call in told.calls]
    assert moments == sorted(moments)
    assert time.time_ns() - 60 * 10**9 < moments[0] <= moments[-1] <= time.time_ns() + 10**6


def test_a_run_that_python_began_is_ended_in_c(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    """Calls by a NumPy integer, which C leaves to Python, amid others of known shapes."""
    numpy = pytest.importorskip("numpy")
    op = watched.over(lambda *_args: None)
    steps = [decode_arguments(batch, workspace()) for batch in (16, 17)]
    for arguments in steps:
        for _ in range(FIRST):
            op(*arguments)
    other = list(steps[0])
    other[watched.at("batch_size")] = numpy.int64(16)
    for arguments in (other, steps[1], other, other, steps[0], steps[1]) * 3:
        op(*arguments)
    told = slot()
    assert eager(told) == {16: FIRST + 12, 17: FIRST + 6}
    assert [call.shape.batch for call in told.calls[-12:]] == [16, 17, 16, 17] * 3


def test_calls_of_a_folded_row_are_summed_up(
    watched: Watched, recorder: Recorder, slot: Callable[[], SlotView]
) -> None:
    """Every row of its own is taken: batches up to a power of two share one."""
    lesser = Shape(0, 0, 1, 64, 1, True, 394 * MIB, 0, 148, 576, 512, 2048, None, None, 0)
    while not recorder.slot.add_row(lesser, 0)[2]:
        pass
    op, buffer = watched.over(lambda *_args: None), workspace()
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


def test_many_calls_leave_nothing_behind(watched: Watched, recorder: Recorder) -> None:
    """No reference and no memory, whether runs go on, change or begin anew."""
    op, result = watched.over(lambda *args: args[0]), object()
    steps = [decode_arguments(batch, workspace()) for batch in (16, 17)]
    for arguments in steps:
        arguments[0] = result
        for _ in range(FIRST):
            op(*arguments)
    held = [result, op, recorder.slot.next_place, *(each for args in steps for each in args)]
    calls = 1_000_000 if os.environ.get("WS_GUARD_NIGHTLY") == "1" else 20_000

    def make(calls: int) -> None:
        for number in range(calls):
            op(*steps[number // 3 % 2])
            if number % 64 == 0:
                watched.ledger.end_run()

    make(1_100)  # round the ring once, which keeps the numbers of its places
    references = [sys.getrefcount(each) for each in held]
    blocks = sys.getallocatedblocks()
    make(calls)
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
