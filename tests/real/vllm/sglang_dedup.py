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
from native_calls import decode_arguments, instrumented, workspace
from sglang_worker import AbsentFinder

from ws_guard.board import Board
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
        self.updates = 0

    def cudaGraphInstantiateWithFlags(self, raw: int, _flags: int) -> tuple[Any, int]:  # noqa: N802 - as CUDA names it
        return self._success, 1_000 + raw

    def cudaGraphExecUpdate(self, _exec: int, _raw: int) -> tuple[Any, Any]:  # noqa: N802 - as CUDA names it
        self.updates += 1
        return self._success, Namespace(result=self._updated)

    def cudaGraphLaunch(self, graph_exec: int, stream: int) -> tuple[Any]:  # noqa: N802 - as CUDA names it
        self.launched.append((graph_exec, stream))
        return (self._success,)

    def cudaGraphExecDestroy(self, _exec: int) -> tuple[Any]:  # noqa: N802 - as CUDA names it
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


def main(how: str) -> None:
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

        from ws_guard.engines import sglang_plugin

        assert sglang_plugin._plugin is not None
        probe: Any = sglang_plugin._plugin._probe
        probe.attach(engine="0", rank="0")
        op, buffer = instrumented(probe, lambda *_args: None), workspace()
        registry, captured = module.DedupedCudaGraphRegistry(), []
        for raw, batch in ((1, 16), (2, 32)):
            graph = graphs.CUDAGraph(keep_graph=True)
            graph.raw_cuda_graph = lambda raw=raw: raw
            with cuda.on("side"):
                graph.capture_begin()
                op(*decode_arguments(batch, buffer))
                op(*decode_arguments(batch, buffer))
                graph.capture_end()
            captured.append(registry.register(graph))
        registry.seal()
        for _ in range(1_000):
            captured[0].replay(stream=7)
        for _ in range(10):
            captured[1].replay(stream=7)
            captured[0].replay(stream=7)
        slot = view()
        registry.close()
        print(
            json.dumps(
                {
                    "replayed": {str(row.shape.batch): row.replayed for row in slot.rows},
                    "captured": {str(row.shape.batch): row.captured for row in slot.rows},
                    "errors": slot.probe_errors,
                    "launched": len(runtime.launched),
                    "executables": len({graph_exec for graph_exec, _ in runtime.launched}),
                    "problems": documents(BOARD)[0]["problems"],
                }
            )
        )


def view() -> Any:
    """The slot of this process."""
    from ws_guard.board import SlotReader, list_slots

    fd = os.open(BOARD, os.O_RDONLY | os.O_DIRECTORY)
    (name,) = list_slots(fd)[0]
    return SlotReader(name).read(Board(BOARD), fd)


if __name__ == "__main__":
    main(sys.argv[2] if len(sys.argv) > 2 else "")
