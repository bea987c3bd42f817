"""Deduplicated graphs of real SGLang without a GPU: `sglang_dedup.py SGLANG_DIRECTORY [CHANGE]`.

SGLang's own: the plugin loader and `DedupedCudaGraphRegistry`. Torch's own: the Python of
`torch.cuda.graphs`. Stood in for: CUDA's runtime, which instantiates, updates and launches; the
signature of a graph's nodes; packages that are missing here. Prints JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

sys.path.insert(0, sys.argv[1])
sys.path.insert(0, str(Path(__file__).parents[2] / "probe"))

import graph_stage
from boards import documents
from native_calls import decode_arguments, instrumented, nothing, workspace
from sglang_worker import AbsentFinder
from slot_views import slots_of

from ws_guard.engines import sglang_graphs

BOARD = os.environ["WS_GUARD_BOARD"]


class Runtime:
    """`cuda.bindings.runtime`, as far as the registry asks it."""

    def __init__(self, real: Any) -> None:
        self.cudaError_t = real.cudaError_t
        self.cudaGraphExecUpdateResult = real.cudaGraphExecUpdateResult
        self._success = real.cudaError_t.cudaSuccess
        self._updated = real.cudaGraphExecUpdateResult.cudaGraphExecUpdateSuccess
        self.launched: list[tuple[int, int]] = []

    def cudaGraphInstantiateWithFlags(self, raw: int, _flags: int) -> tuple[Any, int]:  # noqa: N802 - CUDA's
        return self._success, 1_000 + raw

    def cudaGraphExecUpdate(self, _exec: int, _raw: int) -> tuple[Any, Any]:  # noqa: N802 - CUDA's
        return self._success, Namespace(result=self._updated)

    def cudaGraphLaunch(self, graph_exec: int, stream: int) -> tuple[Any]:  # noqa: N802 - CUDA's
        self.launched.append((graph_exec, stream))
        return (self._success,)

    def cudaGraphExecDestroy(self, _exec: int) -> tuple[Any]:  # noqa: N802 - CUDA's
        return (self._success,)


def change(module: Any, how: str) -> None:
    """Make SGLang another one than is known."""
    registry = module.DedupedCudaGraphRegistry
    if how == "other name":
        registry.launch = registry.replay
        del registry.replay
        module.DedupedCudaGraph.replay = lambda graph, stream: graph.registry.launch(graph, stream)
    elif how == "no original":
        del module.DedupedCudaGraph.__annotations__["original_graph"]


def probe_of_the_plugin() -> Any:
    """The probe of this process, which SGLang's loader has brought with the plugin."""
    from ws_guard.engines import sglang_plugin

    assert sglang_plugin._plugin is not None
    return sglang_plugin._plugin._probe


def register(registry: Any, graphs: Any, cuda: graph_stage.Cuda, probe: Any) -> list[Any]:
    """Graphs of two calls each, of 16 and of 32 rows, captured and given to the registry."""
    op, buffer, registered = instrumented(probe, nothing), workspace(), []
    for raw, batch in ((1, 16), (2, 32)):
        graph = graphs.CUDAGraph(keep_graph=True)
        graph.raw_cuda_graph = lambda raw=raw: raw
        with cuda.on("side"):
            graph.capture_begin()
            op(*decode_arguments(batch, buffer))
            op(*decode_arguments(batch, buffer))
            graph.capture_end()
        registered.append(registry.register(graph))
    registry.seal()
    return registered


def replay(first: Any, second: Any) -> None:
    """The first graph a thousand times, then both in turn."""
    for _ in range(1_000):
        first.replay(stream=7)
    for _ in range(10):
        second.replay(stream=7)
        first.replay(stream=7)


def main(how: str) -> None:
    """Load the plugin, capture, replay, and print what was counted."""
    sys.meta_path.append(AbsentFinder())
    cuda = graph_stage.Cuda()
    with graph_stage.torch_graphs(cuda) as graphs:
        import sglang.srt.plugins as plugins

        if how:
            # Changed before the plugin comes: it meets what is loaded already.
            change(importlib.import_module(sglang_graphs.MODULE), how)
        plugins.load_plugins()
        module: Any = importlib.import_module(sglang_graphs.MODULE)
        runtime = module.cuda_rt = Runtime(module.cuda_rt)
        module.graph_signature = lambda _raw: "the same nodes"
        probe = probe_of_the_plugin()
        probe.attach(engine="0", rank="0")
        registry = module.DedupedCudaGraphRegistry()
        replay(*register(registry, graphs, cuda, probe))
        (slot,) = slots_of(BOARD)
        registry.close()
    told = {
        "replayed": {str(row.shape.batch): row.replayed for row in slot.rows},
        "captured": {str(row.shape.batch): row.captured for row in slot.rows},
        "errors": slot.probe_errors,
        "launched": len(runtime.launched),
        "executables": len({graph_exec for graph_exec, _ in runtime.launched}),
        "problems": documents(BOARD)[0]["problems"],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[2] if len(sys.argv) > 2 else "")
