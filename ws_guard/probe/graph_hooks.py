"""How captures and replays of CUDA graphs come to be known.

Torch tells by hooks from 2.14 on (`torch.cuda.graphs.register_graph_capture_start_hook` and its
kin), but for captures that fail; before that the methods of `CUDAGraph` are wrapped. Both come with
the import of `torch.cuda.graphs`, before an engine makes a graph: whoever keeps a bound
`graph.replay` keeps ours.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ws_guard.foreign import CudaGraph, Foreign

from .graphs import ACCOUNT, Graphs
from .loading import PostImport

_MODULE = "torch.cuda.graphs"
_HOOKS = (
    "register_graph_capture_start_hook",
    "register_graph_capture_end_hook",
    "register_graph_replay_start_hook",
)


class GraphHooks:
    """Tells `graphs` of every capture and replay, from `enter` to `leave`."""

    def __init__(self, graphs: Graphs, report: Callable[[str], None]) -> None:
        self._graphs = graphs
        self._report = report
        self._post_import: PostImport | None = None
        self._undo: list[Callable[[], object]] = []

    def enter(self) -> None:
        """Hook torch's graphs now, or as soon as torch is imported."""
        module = sys.modules.get(_MODULE)
        if module is not None:
            self._hook(module)
        else:
            self._post_import = PostImport(_MODULE, self._hook)
            self._post_import.add()

    def leave(self) -> None:
        """Take every hook and wrapper away."""
        if self._post_import is not None:
            self._post_import.remove()
        while self._undo:
            self._undo.pop()()

    def _hook(self, module: ModuleType) -> None:
        try:
            graph_class = module.CUDAGraph
            # For graphs that were captured before, or by others.
            setattr(graph_class, ACCOUNT, None)
            self._undo.append(lambda: delattr(graph_class, ACCOUNT))
            if hasattr(sys.modules["torch._C"], "_cuda_getCurrentStream"):
                self._graphs.current_stream = _current_stream
            self._graphs.is_capturing = module.is_current_stream_capturing
            if all(hasattr(module, name) for name in _HOOKS):
                self._register(module)
            else:
                self._wrap(graph_class)
        except Exception as error:  # noqa: BLE001 - called while the engine imports torch
            self._report(f"CUDA graphs are not understood, their replays do not count: {error!r}")

    def _register(self, module: ModuleType) -> None:
        graphs = self._graphs
        told = (graphs.begin_capture, graphs.end_capture, graphs.counter_of_replays())
        for name, function in zip(_HOOKS, told, strict=True):
            self._undo.append(getattr(module, name)(function).remove)
        # A capture that fails ends without a hook, and perhaps without `capture_end`.
        graphs.ends_are_seen = False
        self._replace(module.CUDAGraph, "capture_end", self._ending)

    def _wrap(self, graph_class: Foreign) -> None:
        graphs = self._graphs
        made = (self._beginning, self._ending, graphs.counting)
        for name, make in zip(("capture_begin", "capture_end", "replay"), made, strict=True):
            self._replace(graph_class, name, make)

    def _beginning(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        graphs = self._graphs

        @functools.wraps(begin)
        def capture_begin(graph: CudaGraph, *args: Foreign, **kwargs: Foreign) -> Foreign:
            result = begin(graph, *args, **kwargs)
            graphs.begin_capture(graph)
            return result

        return capture_begin

    def _ending(self, end: Callable[..., Any]) -> Callable[..., Any]:
        graphs = self._graphs

        @functools.wraps(end)
        def capture_end(graph: CudaGraph, *args: Foreign, **kwargs: Foreign) -> Foreign:
            try:
                return end(graph, *args, **kwargs)
            finally:
                graphs.end_capture(graph)

        return capture_end

    def _replace(
        self,
        graph_class: Foreign,
        name: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        original = vars(graph_class)[name]
        wrapper = make(original)
        setattr(graph_class, name, wrapper)
        self._undo.append(functools.partial(_restore, graph_class, name, wrapper, original))


def _restore(graph_class: Foreign, name: str, wrapper: Foreign, original: Foreign) -> None:
    # Somebody may have wrapped ours since: then it stays, and counts no more.
    if vars(graph_class).get(name) is wrapper:
        setattr(graph_class, name, original)


def _current_stream() -> object:
    """The calling thread's stream on its device. Torch keeps it itself: CUDA is not asked."""
    native: Any = sys.modules["torch._C"]
    return native._cuda_getCurrentStream(native._cuda_getDevice())
