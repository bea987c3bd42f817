"""A worker that makes calls as fast as it can: real probe, real slot, tensors that stand in.

`python tests/exporter/live_writer.py BOARD RANK SHAPES` meets so many shapes, says `attached`, and
calls until its standard input says `stop`. Then it prints its own account as JSON, and lives on
until its standard input ends.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

from ws_guard.board import Board
from ws_guard.probe.ledger import Ledger
from ws_guard.probe.native_op import Positions, instrument
from ws_guard.probe.parts import Parts
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import LAYOUTS, OPS

#: Bounds of buckets: each bucket holds one batch, and so a histogram's buckets tell its sum.
BATCHES = (1, 4, 16, 64, 256, 1024)
NAMES = (OPS["decode"], OPS["context"])
#: How many calls of each batch one graph holds.
_CAPTURED = {4: 3, 16: 5}
_WORKSPACE_BYTES = 413_138_944
#: An op that takes no more than what matters; positions of real ones come from their source.
_WHERE = Positions(
    arguments=8, out=0, query=1, workspace=2, counter=None, q_len=3, kv_len=None, batch=4,
    sm_count=5, workspace_size=6, lse=7, top_k=None, sparse_indices=None,
)  # fmt: skip


class Tensor:
    """As much of a tensor as the probe looks at."""

    itemsize, is_cuda, is_meta = 1, False, True

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def numel(self) -> int:
        return _WORKSPACE_BYTES

    def data_ptr(self) -> int:
        return 4096


_WORKSPACE = Tensor(_WORKSPACE_BYTES)


def _arguments(batch: int, heads: int = 64) -> tuple[Any, ...]:
    out, query = Tensor(batch, heads, 512), Tensor(batch, heads, 576)
    return out, query, _WORKSPACE, 1, batch, 148, _WORKSPACE_BYTES, None


class Writer:
    """Makes calls of two ops, eager, captured and replayed, and keeps its own account of them."""

    def __init__(self, board: str, rank: str) -> None:
        document = {"engine": "0", "rank": rank, "layout": "B", "contract": "verified"}
        recorder = Recorder(Board(board), LAYOUTS["B"], list(OPS.values()), document)
        self._parts = Parts.of(recorder)
        self._ops = [
            instrument(lambda *_: None, _WHERE, Ledger(recorder, name, self._parts))
            for name in NAMES
        ]
        self._calls = [_arguments(batch) for batch in BATCHES]
        self._replay = self._parts.graphs.counting(lambda _: None)
        self.account = {name: Counter[str]() for name in NAMES}
        self._graphs = [self._capture(op) for op in range(len(NAMES))]

    def _capture(self, op: int) -> Any:
        graph = SimpleNamespace()
        self._parts.graphs.begin_capture(graph)
        for batch, times in _CAPTURED.items():
            for _ in range(times):
                self._ops[op](*_arguments(batch))
            self._note(op, "captured", batch, times)
        self._parts.graphs.end_capture(graph)
        return graph

    def meet(self, shapes: int) -> None:
        """A call of each of so many shapes: beyond 14,464 they share rows."""
        for number in range(shapes):
            self._ops[0](*_arguments(BATCHES[number % len(BATCHES)], 8 + number))
            self._note(0, "eager", BATCHES[number % len(BATCHES)], 1)

    def call(self) -> None:
        """Some steps: layers of one shape in a row, and a replay of each graph."""
        for op, native in enumerate(self._ops):
            chosen = random.randrange(len(BATCHES))  # noqa: S311 - no secret
            args, times = self._calls[chosen], random.randrange(1, 200)  # noqa: S311 - nor here
            for _ in range(times):
                native(*args)
            self._note(op, "eager", BATCHES[chosen], times)
            for _ in range(times):
                self._replay(self._graphs[op])
            for batch, held in _CAPTURED.items():
                self._note(op, "replayed", batch, held * times)

    def _note(self, op: int, mode: str, batch: int, times: int) -> None:
        account = self.account[NAMES[op]]
        account[mode] += times
        account["sum"] += 0 if mode == "captured" else batch * times


def main(board: str, rank: str, shapes: str) -> None:
    """Attach, call, tell, wait."""
    writer = Writer(board, rank)
    writer.meet(int(shapes))
    writer.call()
    print("attached", flush=True)
    os.nice(19)  # there are more of them than processors
    while not select.select([sys.stdin], [], [], 0)[0]:
        writer.call()
    sys.stdin.readline()
    print(json.dumps(writer.account), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
