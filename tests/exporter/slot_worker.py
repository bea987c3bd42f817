"""A worker with a real slot: in this process, or, as a script, in one that can really be killed."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ws_guard.board import OVERFLOW, OVERRUN, Board, Outcome, Shape, Slot
from ws_guard.board.format import (
    COUNT_CAPTURED,
    COUNT_EAGER,
    COUNT_REPLAYED,
    COUNT_TUNING,
    REPLAYS,
    SUM_EAGER,
    SUM_REPLAYED,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DECODE = "trtllm_paged_attention_decode"
CONTEXT = "trtllm_paged_attention_context"

#: vLLM's default workspace, 394 MiB.
WORKSPACE_BYTES = 413_138_944

#: Every route of the exporter.
ROUTES = (
    "/",
    "/health",
    "/livez",
    "/metrics",
    "/readyz",
    "/api/v1/workers",
    "/openapi.json",
    "/api/v1/calls?engine=0&rank=0",
)

COUNT_WORDS = {
    "eager": COUNT_EAGER,
    "captured": COUNT_CAPTURED,
    "replayed": COUNT_REPLAYED,
    "tuning": COUNT_TUNING,
}
SUM_WORDS = {"eager": SUM_EAGER, "replayed": SUM_REPLAYED}
ACTIONS = {"observed": 0, "raised": 1, "split": 2}

DOCUMENT: dict[str, Any] = {
    "engine": "0",
    "rank": "0",
    "ops": [DECODE, CONTEXT],
    "workspaces": ["ws0", "ws1"],
    "layout": "B",
    "contract": "verified",
    "contract_reason": "",
    "info": {"model_name": "deepseek", "flashinfer_version": "0.6.14", "tp": "8", "dcp": "8"},
    "planned": None,
    "problems": [],
}

#: The reported crash, as the plan of its site.
CRASH_PLAN: dict[str, Any] = {
    "workspace": "ws0",
    "fits": False,
    "reasons": ["overflow"],
    "kernel_heads": 64,
    "planned_batch": 16_384,
    "max_q_len": 1,
    "lse": True,
    "layout": "B",
    "slabs": {"counter": 8_388_608, "softmax_stats": 2_148_532_224, "scratch": 0},
    "need_bytes": 2_156_920_832,
    "workspace_bytes": WORKSPACE_BYTES,
    "overflow_threshold_batch": 3_080,
    "overrun_batches": None,
    "recommended_workspace_bytes": 2_561_671_168,
    "env": {"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "2561671168"},
}
#: The same deployment after the advice was taken.
FIXED_PLAN = CRASH_PLAN | {
    "fits": True,
    "reasons": [],
    "workspace_bytes": 2_561_671_168,
    "overflow_threshold_batch": 19_472,
    "env": {},
}


class SlotWorker:
    """Publishes what a probe would publish."""

    def __init__(self, board: Board, *, rank: str = "0", engine: str = "0", **told: object) -> None:
        self.slot = Slot.on_board(board)
        assert self.slot.path, self.slot.problem
        #: The file name of the slot.
        self.name = self.slot.path.rpartition("/")[2]
        self.document = DOCUMENT | {"engine": engine, "rank": rank} | told
        self.describe()
        self._rows: dict[tuple[object, ...], tuple[int, int, bool]] = {}

    def describe(self, **told: object) -> None:
        """Publish the document, changed."""
        self.document |= told
        self.slot.describe(self.document)

    def call(
        self,
        batch: int,
        *,
        count: int = 1,
        mode: str = "eager",
        outcome: Outcome | None = Outcome.EAGER,
        **shape: object,
    ) -> None:
        """`count` native calls; the ring keeps them as a run with this outcome."""
        key = (batch, tuple(shape.items()))
        if key not in self._rows:
            self._rows[key] = self.slot.add_row(make_shape(batch, **shape), batch)
        row, word, folded = self._rows[key]
        self.slot.words[word + COUNT_WORDS[mode]] += count
        if folded and mode in SUM_WORDS:
            self.slot.words[word + SUM_WORDS[mode]] += count * batch
        if outcome is not None:
            lane = REPLAYS if mode == "replayed" else int(str(shape.get("op", 0)))
            self.slot.begin_run(lane, row, outcome)

    def event(self, kind: int, action: str = "observed", op: int = 0, count: int = 1) -> None:
        """Count an overflow or overrun."""
        self.slot.add_event(op, kind, ACTIONS[action], count)

    def overflow(self, batch: int = 3_081) -> None:
        """A call that the launcher refuses, as an observing probe records it."""
        self.event(OVERFLOW)
        self.call(batch, outcome=Outcome.OVERFLOW)

    def die(self) -> None:
        """End without a word, as the kernel ends a killed worker: its lock goes."""
        self.slot.drop()

    def close(self) -> None:
        """End cleanly."""
        self.slot.close()


@contextmanager
def attaching(board: Board) -> Iterator[Callable[..., SlotWorker]]:
    """`attach(**told)`: workers of this process on a board; who has not ended does so cleanly."""
    attached: list[SlotWorker] = []

    def attach(**told: Any) -> SlotWorker:
        attached.append(SlotWorker(board, **told))
        return attached[-1]

    yield attach
    for worker in attached:
        if worker.slot._fd is not None:
            worker.close()


def make_shape(batch: int, **changes: Any) -> Shape:
    """A shape of the sparse MLA decode of 64 heads with LSE on 148 SMs."""
    shape = Shape(
        op=0,
        workspace=0,
        batch=batch,
        heads=64,
        q_len=1,
        lse=True,
        workspace_bytes=WORKSPACE_BYTES,
        address_mod_16=0,
        sm_count=148,
        qk=576,
        vo=512,
        top_k=2048,
        sum_q=None,
        counter_buffer_bytes=None,
        first_seen_ns=time.time_ns(),
    )
    return shape._replace(**changes)


def busy(attach: Callable[..., SlotWorker]) -> SlotWorker:
    """Two ops, two workspaces, every basis and mode, an overflow and an overrun of each op.

    A process acts on overflows in one way, and where a call cannot be split it is only observed:
    two actions at most.
    """
    worker = attach(planned=[CRASH_PLAN, CRASH_PLAN | {"workspace": "ws1"}], expected_workers=1)
    for op in (0, 1):
        for mode in ("eager", "captured", "replayed", "tuning"):
            outcome = Outcome.TUNING if mode == "tuning" else Outcome.EAGER
            worker.call(20, mode=mode, op=op, workspace=op, outcome=outcome)
        for kind in (OVERFLOW, OVERRUN):
            worker.event(kind, "observed", op)
            worker.event(kind, "split", op)
    return worker


def leave_a_child() -> None:
    """Fork behind Python's back, as C code does: the child holds the lock on."""
    child = ctypes.CDLL(None).fork()
    if child == 0:
        os.close(sys.stdout.fileno())  # whose end somebody may wait for
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)


def main(path: str, rank: str, batch: str, child: str = "") -> None:
    """Attach, make one call, say so, and live until killed."""
    worker = SlotWorker(Board(path), rank=rank)
    worker.call(int(batch))
    if child:
        leave_a_child()
    print("attached", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
