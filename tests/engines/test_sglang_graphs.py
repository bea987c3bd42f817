"""Replays that SGLang launches itself: what is counted of a registry, and when it is let alone."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ws_guard.engines.sglang_graphs import follow_replays

if TYPE_CHECKING:
    from collections.abc import Callable


class Probe:
    """What a probe is asked for."""

    def __init__(self, *, on: bool = True) -> None:
        self.replayed: list[object] = []
        self.problems: list[str] = []
        self._on = on

    def counter_of_replays(self) -> Callable[[Any], None] | None:
        return self.replayed.append if self._on else None

    def report(self, problem: str) -> None:
        self.problems.append(problem)


@pytest.fixture
def module() -> Any:
    """SGLang's module, as far as it is looked at; `launched` is what its registry launches."""

    class DedupedCudaGraph:
        original_graph: object | None

        def __init__(self, original_graph: object | None) -> None:
            self.original_graph = original_graph

    class DedupedCudaGraphRegistry:
        def replay(self, graph: DedupedCudaGraph, stream: int) -> str:
            """Theirs."""
            made.launched.append((graph, stream))
            return "launched"

    made: Any = ModuleType("cuda_graph_dedup_mixin")
    made.launched = []
    made.DedupedCudaGraph = DedupedCudaGraph
    made.DedupedCudaGraphRegistry = DedupedCudaGraphRegistry
    return made


def test_the_torch_graph_of_each_replay_is_counted(module: Any) -> None:
    probe, torch_graph = Probe(), object()
    follow_replays(module, probe)
    graph, registry = module.DedupedCudaGraph(torch_graph), module.DedupedCudaGraphRegistry()
    assert registry.replay(graph, 7) == "launched"
    assert registry.replay(graph=graph, stream=8) == "launched"
    assert probe.replayed == [torch_graph] * 2
    assert module.launched == [(graph, 7), (graph, 8)]
    assert registry.replay.__doc__ == "Theirs."
    assert probe.problems == []


def test_graph_that_let_go_of_its_own_is_not_counted(module: Any) -> None:
    """As SGLang's registry does when it closes."""
    probe = Probe()
    follow_replays(module, probe)
    module.DedupedCudaGraphRegistry().replay(module.DedupedCudaGraph(None), 7)
    assert (probe.replayed, len(module.launched)) == ([], 1)


def test_without_a_probe_nothing_is_replaced(module: Any) -> None:
    before = module.DedupedCudaGraphRegistry.replay
    follow_replays(module, Probe(on=False))
    assert module.DedupedCudaGraphRegistry.replay is before


def test_module_without_a_registry_is_one_problem() -> None:
    probe = Probe()
    follow_replays(SimpleNamespace(), probe)
    (problem,) = probe.problems
    assert problem.startswith("replays of deduplicated graphs are not counted (AttributeError")
