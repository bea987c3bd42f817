"""Torch's own `torch.cuda.graphs` over a CUDA that is a few dictionaries, and an op to capture.

Torch's Python is the installed release's, executed anew; what it asks of its C part is answered
here. Runs without pytest too: releases with graph hooks live in another environment.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.cuda.graphs
from native_calls import Watched, decode_arguments, watch, workspace
from slot_views import slots_of

from ws_guard.board import Board
from ws_guard.probe.graph_hooks import GraphHooks
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import LAYOUTS, OPS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from ws_guard.board import SlotView

GRAPHS = "torch.cuda.graphs"


class Cuda:
    """Streams by name, a current one for each thread, and which graph captures which of them."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.capturing: dict[str, object] = {}
        #: Whether captures end with an error, as one that an unsafe call has invalidated.
        self.invalidated = False

    @property
    def stream(self) -> str:
        stream: str = getattr(self._local, "stream", "default")
        return stream

    @contextlib.contextmanager
    def on(self, stream: str) -> Iterator[None]:
        """`torch.cuda.stream`."""
        before = self.stream
        self._local.stream = stream
        try:
            yield
        finally:
            self._local.stream = before

    def join(self, stream: str) -> None:
        """Have a stream wait for an event of the current one: it is captured with it from now."""
        self.capturing[stream] = self.capturing[self.stream]

    def is_capturing(self) -> bool:
        return self.stream in self.capturing


class NativeGraph:
    """`torch._C._CUDAGraph`, as far as captures and replays go."""

    cuda: Cuda
    launches: int
    _has_graph_exec: bool

    def __new__(cls, keep_graph: bool = False) -> NativeGraph:  # noqa: ARG004 - torch's
        graph = object.__new__(cls)
        graph.launches, graph._has_graph_exec = 0, False
        return graph

    def capture_begin(self, pool: object = None, capture_error_mode: str = "") -> None:
        assert pool is None or isinstance(pool, tuple)
        assert capture_error_mode in ("global", "thread_local", "relaxed")
        if self.cuda.is_capturing():
            raise RuntimeError("operation not permitted when stream is capturing")
        self.cuda.capturing[self.cuda.stream] = self

    def capture_end_pre(self) -> None:
        captured = [name for name, graph in self.cuda.capturing.items() if graph is self]
        for stream in captured:
            del self.cuda.capturing[stream]
        if self.cuda.invalidated:
            raise RuntimeError("operation failed due to a previous error during capture")

    def capture_end_post(self) -> None:
        pass

    def capture_end(self) -> None:
        self.capture_end_pre()
        self._has_graph_exec = True

    def instantiate(self) -> None:
        self._has_graph_exec = True

    def replay(self) -> None:
        assert self._has_graph_exec
        self.launches += 1

    def reset(self) -> None:
        self._has_graph_exec = False

    def pool(self) -> tuple[int, int]:
        return 0, 1


@contextlib.contextmanager
def torch_graphs(cuda: Cuda) -> Iterator[ModuleType]:
    """`torch.cuda.graphs` executed anew over `cuda`, in the place of the one that is loaded."""
    answers: dict[str, object] = {
        "_CudaStreamBase": object,
        "_CUDAGraph": type("NativeGraph", (NativeGraph,), {"cuda": cuda}),
        "_graph_pool_handle": lambda: (0, 1),
        "_cuda_isCurrentStreamCapturing": cuda.is_capturing,
        "_cuda_getCurrentStream": lambda _device: cuda.stream,
        "_cuda_getDevice": lambda: 0,
    }
    native, loaded = vars(torch._C), sys.modules[GRAPHS]
    before = {name: native[name] for name in answers if name in native}
    native.update(answers)
    try:
        spec = importlib.util.spec_from_file_location(GRAPHS, loaded.__file__)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[GRAPHS] = module
        yield module
    finally:
        sys.modules[GRAPHS] = loaded
        for name in answers:
            del native[name]
        native.update(before)


class Stage:
    """An op under a probe whose captures and replays are followed."""

    def __init__(self, cuda: Cuda, module: ModuleType, board: str, action: str = "observe") -> None:
        self.cuda = cuda
        self.module = module
        self.board = board
        self.recorder = Recorder(Board(board), LAYOUTS["B"], list(OPS.values()), {"engine": "0"})
        self.watched: Watched = watch(self.recorder, action)
        self.problems: list[str] = []
        self.hooks = GraphHooks(self.watched.graphs, self.problems.append)
        self.launched: list[int] = []
        self.op = self.watched.over(self._native)
        self.buffer = workspace()

    def _native(self, *args: Any) -> None:
        self.launched.append(args[self.watched.at("batch_size")])

    def call(self, batch: int, times: int = 1, **options: Any) -> None:
        """Calls of a decode of that many rows."""
        arguments = decode_arguments(batch, options.pop("workspace", self.buffer), **options)
        for _ in range(times):
            self.op(*arguments)

    def graph(self, **options: Any) -> Any:
        return self.module.CUDAGraph(**options)

    @contextlib.contextmanager
    def capture(self, graph: Any, stream: str = "side", **options: Any) -> Iterator[None]:
        """What `torch.cuda.graph` does: a stream of its own, the end whatever happens."""
        with self.cuda.on(stream):
            graph.capture_begin(**options)
            try:
                yield
            finally:
                graph.capture_end()

    @property
    def slot(self) -> SlotView:
        """The slot of this recorder now."""
        (only,) = (slot for slot in slots_of(self.board) if slot.alive)
        return only

    def counts(self, *modes: str) -> dict[int, tuple[int, ...]]:
        """Calls by batch, in the modes asked for."""
        return {
            row.shape.batch: tuple(getattr(row, mode) for mode in modes) for row in self.slot.rows
        }


@contextlib.contextmanager
def stage(action: str = "observe") -> Iterator[Stage]:
    """A stage on a board of its own, its hooks in place."""
    cuda = Cuda()
    with tempfile.TemporaryDirectory() as folder, torch_graphs(cuda) as module:
        set_up = Stage(cuda, module, os.path.join(folder, "board"), action)
        set_up.hooks.enter()
        try:
            yield set_up
        finally:
            set_up.hooks.leave()
            set_up.recorder.close(keep_evidence=False)


def has_hooks() -> bool:
    """Whether the installed torch tells of captures and replays by itself."""
    return hasattr(torch.cuda.graphs, "register_graph_replay_start_hook")
