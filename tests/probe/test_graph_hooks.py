"""How the probe comes to torch's graphs, and how it leaves them."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
from fresh_python import python
from graph_stage import Cuda, Stage, has_hooks, stage, torch_graphs
from slot_views import slots_of

from ws_guard.probe.graph_hooks import GraphHooks
from ws_guard.probe.graphs import ACCOUNT, Graphs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.probe.recorder import Recorder

METHODS = ("capture_begin", "capture_end", "replay")
HOOKS = (
    "register_graph_capture_start_hook",
    "register_graph_capture_end_hook",
    "register_graph_replay_start_hook",
)

patched = pytest.mark.skipif(has_hooks(), reason="this torch has graph hooks: none is patched")


def methods(module: ModuleType) -> list[object]:
    return [vars(module.CUDAGraph)[name] for name in METHODS]


@patched
def test_methods_are_wrapped_and_given_back(recorder: Recorder) -> None:
    with torch_graphs(Cuda()) as module:
        before, names = methods(module), set(vars(module.CUDAGraph))
        hooks = GraphHooks(Graphs(recorder), pytest.fail)
        hooks.enter()
        for wrapper, original in zip(methods(module), before, strict=True):
            assert wrapper is not original
            assert (wrapper.__name__, wrapper.__doc__) == (original.__name__, original.__doc__)
        for _ in range(2):
            hooks.leave()
            assert methods(module) == before
            assert set(vars(module.CUDAGraph)) == names


@patched
def test_wrapper_of_another_stays() -> None:
    """Somebody has wrapped `replay` after us: taking ours away would take theirs too."""
    with stage() as at:
        ours = at.module.CUDAGraph.replay
        seen = []

        def theirs(graph: Any) -> None:
            seen.append(graph)
            ours(graph)

        at.module.CUDAGraph.replay = theirs
        graph = at.graph()
        with at.capture(graph):
            at.call(16)
        at.hooks.leave()
        assert at.module.CUDAGraph.replay is theirs
        graph.replay()
        assert (seen, graph.launches) == ([graph], 1)


@patched
def test_wrapper_of_another_may_have_any_name() -> None:
    """Somebody has wrapped `replay` before us, and has not said that it is `replay`."""
    with stage() as at:
        at.hooks.leave()
        torchs = at.module.CUDAGraph.replay

        def theirs(graph: Any) -> None:
            torchs(graph)

        at.module.CUDAGraph.replay = theirs
        at.hooks.enter()
        graph = at.graph()
        with at.capture(graph):
            at.call(16)
        for _ in range(3):
            graph.replay()
        assert graph.launches == 3
        assert at.counts("captured", "replayed") == {16: (1, 3)}
        at.hooks.leave()
        assert at.module.CUDAGraph.replay is theirs
        assert theirs.__name__ not in vars(at.module.CUDAGraph)


@patched
def test_arguments_and_results_pass_through() -> None:
    with stage() as at:
        graph = at.graph()
        with at.cuda.on("side"):
            assert graph.capture_begin(pool=(0, 1), capture_error_mode="relaxed") is None
            graph.capture_end()
        assert graph.replay() is None
        with pytest.raises(TypeError, match="unexpected keyword argument 'no_such'"):
            graph.capture_begin(no_such=True)
        assert not at.watched.graphs.capturing


@patched
def test_torch_with_hooks_is_patched_for_captures_that_fail(recorder: Recorder) -> None:
    """The three registrations of torch 2.14, as far as this torch can have them."""
    told: dict[str, list[Any]] = {name: [] for name in HOOKS}

    class Handle:
        def __init__(self, name: str, hook: Callable[..., None]) -> None:
            self._name, self._hook = name, hook
            told[name].append(hook)

        def remove(self) -> None:
            told[self._name].remove(self._hook)

    with torch_graphs(Cuda()) as module:
        before = methods(module)
        for name in HOOKS:
            vars(module)[name] = lambda hook, name=name: Handle(name, hook)
        hooks = GraphHooks(Graphs(recorder), pytest.fail)
        hooks.enter()
        begin, end, replay = methods(module)
        assert (begin, replay) == (before[0], before[2])
        assert end.__name__ == "capture_end"
        assert end is not before[1]
        assert [len(registered) for registered in told.values()] == [1, 1, 1]
        hooks.leave()
        assert methods(module) == before
        assert [len(registered) for registered in told.values()] == [0, 0, 0]


@pytest.mark.parametrize("missing", ["CUDAGraph", "replay", "is_current_stream_capturing"])
def test_torch_that_is_not_as_we_know_it_is_a_problem(missing: str, recorder: Recorder) -> None:
    problems: list[str] = []
    with torch_graphs(Cuda()) as module:
        if missing == "replay":
            del module.CUDAGraph.replay
            if has_hooks():
                pytest.skip("this torch tells of replays by itself")
        else:
            delattr(module, missing)
        hooks = GraphHooks(Graphs(recorder), problems.append)
        hooks.enter()
        (problem,) = problems
        assert problem.startswith("CUDA graphs are not understood, their replays do not count: ")
        assert missing in problem
        hooks.leave()
        if missing != "CUDAGraph":
            assert ACCOUNT not in vars(module.CUDAGraph)


def test_error_of_torch_is_torchs_own() -> None:
    with stage() as at:
        graph = at.graph()
        with at.cuda.on("side"):
            graph.capture_begin()
            at.cuda.invalidated = True
            with pytest.raises(RuntimeError, match="previous error during capture"):
                graph.capture_end()
        with pytest.raises(AssertionError):
            graph.replay()
        assert at.slot.probe_errors == 0


def test_hooks_come_with_the_import_of_torch(board: str) -> None:
    """The probe is there first, as engines load it; nothing of torch is imported for it."""
    program = """
import sys
import ws_guard
probe = ws_guard.install(board=sys.argv[1])
assert "torch" not in sys.modules
import torch
hooked = torch.cuda.graphs.CUDAGraph
print(hasattr(hooked, "_ws_guard_account"))
print(probe._recorder._document["problems"])
probe.uninstall()
print(hasattr(hooked, "_ws_guard_account"))
print([finder for finder in sys.meta_path if "ws_guard" in type(finder).__module__])
"""
    assert python(program, board) == ["True", "[]", "False", "[]"]


def test_account_of_a_probe_that_was_taken_away_is_nobodys() -> None:
    """Its calls are counted in rows of a slot that is gone."""
    with stage() as at:
        graph = at.graph()
        with at.capture(graph):
            at.call(16)
        later = Stage(at.cuda, at.module, at.board)
        at.hooks.leave()
        later.hooks.enter()
        try:
            for _ in range(3):
                graph.replay()
            with later.capture(graph):
                later.call(32)
            graph.replay()
            assert graph.launches == 4
            (mine,) = (s for s in slots_of(at.board) if len(s.rows) and s.rows[0].shape.batch == 32)
            assert [(row.shape.batch, row.replayed) for row in mine.rows] == [(32, 1)]
            assert mine.probe_errors == 0
            assert {call.shape.batch for call in mine.calls} == {32}
        finally:
            later.hooks.leave()
            later.recorder.close(keep_evidence=False)
