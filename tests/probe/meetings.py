"""The ledgers of a process around one recorder, native calls for them to meet, and a real exporter.

Tensors are real ones on the CPU; one that says of itself that it is on a card has a stream.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import torch
from native_calls import NO_FRONT, sparse_call

from ws_guard.board import Board
from ws_guard.exporter.server import Exporter
from ws_guard.probe.calls import Met
from ws_guard.probe.ledger import Ledger
from ws_guard.probe.parts import Parts
from ws_guard.probe.recorder import Recorder
from ws_guard.settings import require_settings
from ws_guard.sizing import LAYOUTS, OPS, XQA_OPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ws_guard.probe.calls import NativeCall

MIB = 1 << 20
DECODE, CONTEXT, XQA = OPS["decode"], OPS["context"], XQA_OPS["xqa"]


class OnCard(torch.Tensor):
    """A tensor that takes itself for one on a GPU."""

    is_cuda = True


def on_card(size: int = 64 * MIB) -> torch.Tensor:
    """A workspace with a stream; its pages are never touched."""
    return torch.zeros(size, dtype=torch.uint8).as_subclass(OnCard)


class Told(NamedTuple):
    """Arguments that say what a call is; the workspace is the only one of them."""

    call: NativeCall

    def read(self, args: tuple[Any, ...]) -> NativeCall:
        (workspace,) = args
        if workspace.data_ptr() == self.call.workspace_address:
            return self.call
        return self.call._replace(
            workspace_address=workspace.data_ptr(), workspace_bytes=workspace.numel()
        )

    def with_workspace(self, _args: tuple[Any, ...], workspace: Any) -> tuple[Any, ...]:
        return (workspace,)


class Meetings:
    """Ledgers by op, on a board; `made` are the workspaces that native calls were made with."""

    def __init__(self, board: str, layout: str = "B", action: str = "observe", **how: Any) -> None:
        ops = [*OPS.values(), *XQA_OPS.values()]
        told = {"engine": "0", "rank": "0", "layout": layout, "contract": "verified"}
        self.recorder = Recorder(Board(board), LAYOUTS[layout], ops, told)
        self.reports: list[str] = []
        self.parts = Parts.of(self.recorder, action, report=self.reports.append, **how)
        self.parts.graphs.current_stream = lambda: self.stream
        self.stream: object = "main"
        self.made: list[torch.Tensor] = []
        self._ledgers = {op: Ledger(self.recorder, op, self.parts) for op in ops}

    def call(
        self,
        workspace: torch.Tensor,
        op: str = DECODE,
        *,
        batch: int = 16,
        lse: bool = True,
        says_bytes: int | None = None,
        max_kv_len: int | None = 64,
    ) -> torch.Tensor:
        """Make a call; the workspace that its native function got."""
        address = workspace.data_ptr()
        size = workspace.numel() if says_bytes is None else says_bytes
        more = {"lse": lse, "workspace_address": address, "max_kv_len": max_kv_len, "kv_heads": 8}
        told = Told(sparse_call(batch, size, **more))
        key = (batch, lse, address, size)
        like: Any = (*key, None, None, None, None)
        met = Met(key, like, NO_FRONT, batch, lse, workspace, address, size, (workspace,), told)
        handling = self._ledgers[op].meet(met)
        handling = handling or (lambda native, args: native(*args))
        handling(self.made.append, (workspace,))
        return self.made[-1]

    def learned(self, op: str = DECODE) -> int:
        """Shapes that the hot path counts by itself."""
        return len(self._ledgers[op].known)

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Capture a graph on the current stream."""
        graph = type("Graph", (), {})()
        self.parts.graphs.begin_capture(graph)
        try:
            yield
        finally:
            self.parts.graphs.end_capture(graph)

    @property
    def warnings(self) -> list[str]:
        return list(self.recorder._document.get("warnings", []))

    def close(self) -> None:
        self.parts.ticker.stop()
        self.recorder.close(keep_evidence=False)


def health(board: str) -> dict[str, Any]:
    """/health of a real exporter over the board."""
    told = {"WS_GUARD_BOARD": board, "WS_GUARD_LISTEN": "127.0.0.1:0"}
    exporter = Exporter(require_settings(told))
    exporter.start()
    try:
        found: dict[str, Any] = httpx.get(f"{exporter.url}/health").json()
    finally:
        exporter.stop()
    return found
