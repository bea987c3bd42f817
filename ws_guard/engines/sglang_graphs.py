"""Replays of SGLang's deduplicated CUDA graphs, which never come to torch.

With `SGLANG_ENABLE_CUDA_GRAPH_DEDUP` SGLang keeps one executable for many graphs of the same nodes,
and launches it by `cudaGraphLaunch` (`cuda_graph_dedup_mixin.py`, 0.5.23). Each of them still holds
the torch graph that it was captured as, and that one our account.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType

from ws_guard.foreign import CudaGraph, Foreign
from ws_guard.probe import Probe

MODULE = "sglang.srt.model_executor.runner_backend.cuda_graph_dedup_mixin"

_PARAMETERS = ["self", "graph", "stream"]


def follow_replays(module: ModuleType, probe: Probe) -> None:
    """Count the replays of SGLang's registry; a problem of the worker's where it is another one."""
    try:
        _follow(module, probe)
    except Exception as error:  # noqa: BLE001 - called while SGLang imports the module
        kind = f"{type(error).__name__}: {error}"
        probe.report(f"replays of deduplicated graphs are not counted ({kind[:120]})")


def _follow(module: Foreign, probe: Probe) -> None:
    registry, count = module.DedupedCudaGraphRegistry, probe.counter_of_replays()
    original = vars(registry)["replay"]
    if count is None:
        return
    parameters = list(inspect.signature(original).parameters)
    if parameters != _PARAMETERS:
        raise TypeError(f"replay takes {', '.join(parameters)}")
    if "original_graph" not in module.DedupedCudaGraph.__annotations__:
        raise TypeError("a graph of theirs does not say which of torch's it was")

    @functools.wraps(original)
    def replay(self: Foreign, graph: CudaGraph, stream: Foreign) -> Foreign:
        captured = graph.original_graph
        if captured is not None:
            count(captured)
        return original(self, graph, stream)

    registry.replay = replay
