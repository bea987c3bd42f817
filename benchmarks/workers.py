"""What stands for workers where an exporter is measured: full slots, all of this process.

A reader sees no difference: a worker is alive while its slot is locked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ws_guard.board import Board, Outcome, Shape, Slot
from ws_guard.board.format import COUNT_EAGER, RING_RUNS, ROW_WORDS, ROWS_OFFSET
from ws_guard.planning import plan
from ws_guard.sizing import OPS

SHAPES = 200
_WORKSPACE = 394 << 20
_PLAN = plan(
    heads=64, max_num_batched_tokens=1024, workspace_bytes=_WORKSPACE, flashinfer="0.6.14"
)._asdict()


@contextmanager
def busy_workers(board: Board, count: int) -> Iterator[list[Slot]]:
    """So many workers on a board, until the block ends."""
    slots = [busy_worker(board, rank) for rank in range(count)]
    yield slots
    for slot in slots:
        slot.close()


def busy_worker(board: Board, rank: int) -> Slot:
    """A slot with two ops, two workspaces that are planned, 200 shapes and a full ring."""
    slot = Slot.on_board(board)
    ops = list(OPS.values())
    workspaces = ["ws0", "ws1"]
    slot.describe(
        {
            "engine": "0",
            "rank": str(rank),
            "ops": ops,
            "workspaces": workspaces,
            "layout": "B",
            "contract": "verified",
            "planned": [{"workspace": w, **_PLAN} for w in workspaces],
        }
    )
    for number in range(SHAPES):
        shape = Shape(
            op=number % 2, workspace=number % 2, batch=1 + 16 * number, heads=64, q_len=1, lse=True,
            workspace_bytes=_WORKSPACE, address_mod_16=0, sm_count=148, qk=576, vo=512, top_k=2048,
            sum_q=None, counter_buffer_bytes=None, first_seen_ns=time.time_ns(),
        )  # fmt: skip
        _, word, _ = slot.add_row(shape, number)
        slot.words[word + COUNT_EAGER] += 1 + number
    for run in range(RING_RUNS):
        row = run % SHAPES
        slot.begin_run(row % 2, row, Outcome.EAGER)
    return slot


def call_all(slots: list[Slot]) -> None:
    """One more eager call of every worker, of a shape that changes from call to call."""
    for number, slot in enumerate(slots, time.monotonic_ns()):
        row = number % SHAPES
        slot.words[ROWS_OFFSET // 8 + row * ROW_WORDS + COUNT_EAGER] += 1
        slot.begin_run(row % 2, row, Outcome.EAGER)
