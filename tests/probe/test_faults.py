"""An exception at each step of the probe: the native call's result and errors stay its own.

Every function that the probe calls around a native call, a capture or a replay is made to raise,
one at a time, in a step of an engine that does all of these.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
from graph_stage import Stage, stage
from hot_paths import IN_C, IN_PYTHON, take
from native_calls import MIB, REFUSAL, REFUSED_BATCH, decode_arguments, workspace

from ws_guard import WorkspaceOverflowError

if TYPE_CHECKING:
    from collections.abc import Callable

REFUSED, RESULT = RuntimeError(REFUSAL), object()

#: (where, what) by the actions under which the step below comes past it.
ALWAYS = (
    ("probe.native_op", "ref"),
    ("probe.native_op", "count_known"),
    ("probe.native_op", "Met"),
    ("probe.native_op", "Positions.read"),
    ("probe.ledger", "Ledger.meet"),
    ("probe.ledger", "Ledger._account"),
    ("probe.ledger", "Ledger._instead"),
    ("probe.ledger", "Ledger._judged"),
    ("probe.ledger", "Ledger._row"),
    ("probe.ledger", "Ledger._see"),
    ("probe.ledger", "Ledger._tune"),
    ("probe.ledger", "Ledger._call"),
    ("probe.ledger", "Ledger._count"),
    ("probe.ledger", "Ledger._learn"),
    ("probe.ledger", "Ledger._go_on"),
    ("probe.ledger", "Ledger._beware"),
    ("probe.ledger", "Ledger._pause"),
    ("probe.ledger", "Ledger.row_of"),
    ("probe.ledger", "pack_run"),
    ("probe.hygiene", "Hygiene.see"),
    ("probe.hygiene", "Hygiene._forgive_warm_ups"),
    ("probe.guard", "Guard.handle"),
    ("probe.guard", "Trouble.kind"),
    ("probe.recorder", "Recorder.workspace_number"),
    ("probe.recorder", "Recorder.add_event"),
    ("probe.recorder", "Recorder.attach_if_pending"),
    ("probe.recorder", "Recorder.describe"),
    ("probe.recorder", "is_refusal"),
    ("probe.graphs", "GraphAccount"),
    ("probe.graphs", "GraphAccount.add"),
    ("probe.graphs", "GraphAccount.settle"),
    ("probe.graphs", "Graphs.capture_of_this_call"),
    ("probe.graphs", "Graphs._forget"),
    ("probe.graphs", "Graphs._tell"),
    ("probe.graphs", "Graphs._begin_run"),
    ("probe.graph_hooks", "_current_stream"),
    ("board.writer", "Slot.add_row"),
    ("board.writer", "Slot.begin_run"),
    ("board.writer", "Slot.add_event"),
    ("sizing", "carve"),
    ("sizing", "need"),
    ("sizing", "overruns"),
    ("sizing", "scratch"),
)
BY_ACTION = {
    "observe": (("probe.guard", "Guard._expect_refusal"),),
    "raise": (
        ("probe.guard", "Guard._raise"),
        ("probe.overflow", "WorkspaceOverflowError.of"),
        ("probe.recorder", "Recorder.workspace_name"),
        ("probe.recorder", "Recorder.planned"),
        ("sizing", "overflow_threshold_batch"),
    ),
    "split": (
        ("probe.guard", "Guard._split"),
        ("probe.split", "Splitter.pieces"),
        ("probe.split", "piece_rows"),
        ("probe.split", "_slice"),
        ("probe.split", "_is_given"),
    ),
}
#: What may become of a troubled call, the usual first.
POSSIBLE = {"observe": ("observed",), "raise": ("raised",), "split": ("split", "raised")}
#: Of the hot path in Python alone, and of the one in C.
PYTHON = (("probe.native_op", "monotonic"), ("probe.graphs", "monotonic"))
C = (("board.writer", "Slot.address_of"), ("probe.ledger", "Ledger.follow"))
CASES = [
    (action, where, what, path)
    for action, own in BY_ACTION.items()
    for path, alone in ((IN_PYTHON, PYTHON), (IN_C, C))
    for where, what in (*ALWAYS, *alone, *own)
]


class Fault:
    """A function of ours that raises once it is armed."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self.armed = False
        self.hits = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.armed:
            self.hits += 1
            raise ZeroDivisionError("injected")
        return self._original(*args, **kwargs)


def inject(patch: pytest.MonkeyPatch, where: str, what: str) -> Fault:
    """Put a fault in the place of `what`, a function or `Class.method`."""
    module: Any = importlib.import_module(f"ws_guard.{where}")
    *classes, name = what.split(".")
    owner = module
    for each in classes:
        owner = getattr(owner, each)
    static = isinstance(vars(owner)[name], classmethod)
    fault = Fault(getattr(owner, name))

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return fault(*args, **kwargs)

    patch.setattr(owner, name, staticmethod(stand_in) if static else stand_in)
    return fault


def outcome_of(action: Callable[[], object]) -> object:
    """What an action gives or raises."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error


class Engine:
    """What an engine does with the op, and what came of each call."""

    def __init__(self, at: Stage) -> None:
        self.at = at
        self.called = 0
        self.op = at.watched.over(self._native)
        self.small = workspace(12 * MIB)
        self.wrong = False

    def _native(self, *args: Any) -> object:
        self.called += 1
        if self.wrong:
            raise REFUSED.with_traceback(None)
        if args[self.at.watched.at("batch_size")] == REFUSED_BATCH:
            raise REFUSED.with_traceback(None)
        return RESULT

    def call(self, batch: int, **options: Any) -> None:
        """A call that goes well: its result is the native one, made by one native call."""
        before = self.called
        buffer = options.pop("workspace", self.at.buffer)
        assert self.op(*decode_arguments(batch, buffer, **options)) is RESULT
        assert self.called == before + 1

    def troubled(self, batch: int, **options: Any) -> str:
        """A call that does not fit: made as it came, raised before it was, or split."""
        before = self.called
        buffer = options.pop("workspace", self.at.buffer)
        came = outcome_of(lambda: self.op(*decode_arguments(batch, buffer, **options)))
        calls = self.called - before
        if isinstance(came, WorkspaceOverflowError):
            assert calls == 0
            return "raised"
        assert came is REFUSED or came is RESULT
        assert calls == 1 or came is RESULT
        return "observed" if calls == 1 else "split"

    def step(self) -> list[str]:
        """Harmless, troubled, captured and replayed calls; what was done about the troubled."""
        at, done = self.at, []
        for batch in (16, 16, 16, 16, 16, 32, 16, 16):
            self.call(batch)
        done.append(self.troubled(REFUSED_BATCH))
        done.append(self.troubled(74, workspace=self.small, lse=False))
        graph, other = at.graph(), at.graph()
        with at.capture(graph):
            self.call(16)
            self.call(48)
            done.append(self.troubled(74, workspace=self.small, lse=False))
        with at.capture(other):
            self.call(16)
        for _ in range(3):
            graph.replay()
            other.replay()
            other.replay()
        assert (graph.launches, other.launches) == (3, 6)
        at.watched.tuning._note(True)
        self.call(16)
        at.watched.tuning._note(False)
        # A refusal that nothing foretold.
        self.wrong = True
        assert self.troubled(16) == "observed"
        self.wrong = False
        # A workspace that was not met before.
        self.call(24, workspace=workspace(64 * MIB))
        return done


@pytest.mark.parametrize(("action", "where", "what", "path"), CASES)
def test_native_calls_stay_what_they_are(
    action: str, where: str, what: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(path, monkeypatch)
    fault = inject(monkeypatch, where, what)
    with stage(action) as at:
        engine = Engine(at)
        fault.armed = True
        done = engine.step()
        fault.armed = False
        assert fault.hits > 0, "the step does not come past it"
        # Beside the refusal that nothing foretold.
        assert at.slot.probe_errors >= 1 + (what != "is_refusal"), "it was counted"
        # What could not be done about a troubled call leaves it as it came.
        assert set(done) <= {"observed", *POSSIBLE[action]}
        # And all is well afterwards: later calls and replays count.
        errors = at.slot.probe_errors
        before = at.counts("eager")
        for _ in range(10):
            engine.call(20)
        assert at.counts("eager").get(20, (0,))[0] - before.get(20, (0,))[0] == 10
        assert engine.troubled(REFUSED_BATCH) == POSSIBLE[action][0]
        assert at.slot.probe_errors == errors


@pytest.mark.parametrize("action", ["observe", "raise", "split"])
def test_without_a_fault_the_step_has_no_error(action: str) -> None:
    with stage(action) as at:
        done = Engine(at).step()
        # The refusal that nothing foretold.
        assert at.slot.probe_errors == 1
        # 12,288 rows; then 74 in 12 MiB, whose pieces are no better off than they.
        assert set(done) <= set(POSSIBLE[action])
        assert done[0] == POSSIBLE[action][0]


@pytest.mark.parametrize(
    ("where", "what"),
    [("board.writer", "Slot.add_probe_error"), ("probe.recorder", "Recorder.warn")],
)
def test_even_the_counting_of_errors_may_fail(
    where: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = inject(monkeypatch, where, what)
    other = inject(monkeypatch, "probe.ledger", "Ledger._judged")
    with stage() as at:
        engine = Engine(at)
        fault.armed = other.armed = True
        engine.step()
        assert min(fault.hits, other.hits) > 0
