"""Workers that are killed at a point of their own code: `points.py BOARD`, one life for a line.

A line `ACTION POINT` has a new process do the action on a slot and kill itself before bytecode
POINT of `board/writer.py` in it. Answered by its exit code: 0 once there is no such point.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from ws_guard.board import OVERFLOW, Board, Outcome, Shape, Slot, writer
from ws_guard.board.format import COUNT_EAGER, EXACT_ROWS, Header

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

BEFORE = {"engine": "0", "rank": "0", "ops": ["trtllm_paged_attention_decode"], "text": "a" * 99}
AFTER = BEFORE | {"text": "b" * 9_999}


def shape(batch: int) -> Shape:
    return Shape(
        op=0,
        workspace=0,
        batch=batch,
        heads=batch * 3,
        q_len=batch * 5,
        lse=False,
        workspace_bytes=batch * 1_000_003,
        address_mod_16=0,
        sm_count=148,
        qk=576,
        vo=512,
        top_k=0,
        sum_q=None,
        counter_buffer_bytes=None,
        first_seen_ns=batch * 7,
    )


def prepared(board: Board) -> Slot:
    """A slot with a document, a row of three calls and a run."""
    slot = Slot.on_board(board)
    slot.describe(BEFORE)
    row, word, _ = slot.add_row(shape(1), 1)
    slot.words[word + COUNT_EAGER] += 3
    slot.begin_run(0, row, Outcome.EAGER)
    return slot


def prepared_to_fold(board: Board) -> Slot:
    """The same with a table whose rows are all taken, and one that has folded two calls."""
    slot = prepared(board)
    slot.words[Header.EXACT_ROWS] = EXACT_ROWS
    _, word, _ = slot.add_row(shape(17), 17)
    slot.words[word + COUNT_EAGER] += 2
    return slot


def make(board: Board) -> None:
    Slot.on_board(board)


#: By action: what comes first, and what is done then.
ACTIONS: dict[str, tuple[Callable[[Board], Any], Callable[[Any], object]]] = {
    "making": (lambda board: board, make),
    "document": (prepared, lambda slot: slot.describe(AFTER)),
    "row": (prepared, lambda slot: slot.add_row(shape(2), 2)),
    "fold": (prepared_to_fold, lambda slot: slot.add_row(shape(3), 3)),
    "worse": (prepared_to_fold, lambda slot: slot.add_row(shape(18), 18)),
    "run": (prepared, lambda slot: slot.begin_run(0, 0, Outcome.CAPTURED)),
    "event": (prepared, lambda slot: slot.add_event(0, OVERFLOW, 0)),
    "closing": (prepared, lambda slot: slot.close()),
}


class Death:
    """A tracer that kills its process at the n-th bytecode of the writer."""

    def __init__(self, point: int) -> None:
        self._left = point

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Death | None:
        if frame.f_code.co_filename != writer.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
        return self


def live(board: Board, action: str, point: int) -> None:
    prepare, act = ACTIONS[action]
    ready = prepare(board)
    sys.settrace(Death(point))
    act(ready)
    sys.settrace(None)
    os._exit(0)


def main(path: str) -> None:
    board = Board(path)
    for line in sys.stdin:
        action, point = line.split()
        pid = os.fork()
        if pid == 0:
            live(board, action, int(point))
        _, status = os.waitpid(pid, 0)
        print(pid, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
