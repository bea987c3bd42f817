"""Workers killed between any two bytecodes of what writes slots: each slot is as before or after.

Every point with WS_GUARD_NIGHTLY=1 (`make nightly`), every 16th from a random one on otherwise.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from points import ACTIONS, AFTER, BEFORE, shape

from ws_guard.board import Board, Outcome, SlotReader, list_slots
from ws_guard.exporter.snapshot import BoardWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ws_guard.board import Shape, SlotView

SCRIPT = Path(__file__).with_name("points.py")
STEP = 1 if os.environ.get("WS_GUARD_NIGHTLY") == "1" else 16

ONE = (shape(1), 3)
#: By action: the rows that may be found, as (shape, eager calls).
ROWS: dict[str, list[list[tuple[Shape, int]]]] = {
    "row": [[ONE], [ONE, (shape(2), 0)]],
    "fold": [[ONE, (shape(17), 2)], [ONE, (shape(17), 2), (shape(3), 0)]],
    # The same row: the shape that it shows is replaced.
    "worse": [[ONE, (shape(17), 2)], [ONE, (shape(18), 2)]],
}


@pytest.fixture
def board() -> Iterator[Board]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ws_guard-test-") as path:
        yield Board(path)


@pytest.fixture
def lives(board: Board) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), board.path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate()


def kill_at(lives: subprocess.Popen[str], action: str, point: int) -> tuple[int, int]:
    """(pid, exit code) of a life that was to be killed there."""
    assert lives.stdin is not None
    assert lives.stdout is not None
    lives.stdin.write(f"{action} {point}\n")
    lives.stdin.flush()
    pid, code = lives.stdout.readline().split()
    return int(pid), int(code)


def read(board: Board) -> SlotView | None:
    """The one slot of the board, if it shows one, by a reader that never saw it before."""
    directory = os.open(board.path, os.O_RDONLY)
    try:
        slots, foreign = list_slots(directory)
        assert foreign == []
        return SlotReader(slots[0]).read(board, directory) if slots else None
    finally:
        os.close(directory)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_slot_is_as_before_or_as_after(
    action: str, board: Board, lives: subprocess.Popen[str]
) -> None:
    point, killed = random.randrange(STEP), 0  # noqa: S311 - no secret
    while True:
        pid, code = kill_at(lives, action, point)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        snapshot, view = BoardWatch(board).read(), read(board)
        assert (snapshot.fault, snapshot.read_errors, snapshot.unreadable) == ("", 0, ())
        if view is None:
            assert action in ("making", "closing")
        else:
            check(action, view)
            assert view.pid == pid
        for name in os.listdir(board.path):
            (Path(board.path) / name).unlink()
        killed, point = killed + 1, point + STEP
    print(f"{action}: killed at {killed} points")
    assert killed


def rows(view: SlotView) -> list[tuple[Shape, int]]:
    return [(row.shape, row.eager) for row in view.rows]


def check(action: str, view: SlotView) -> None:
    assert not view.alive
    if action == "making":
        assert (view.document, view.rows, view.closed) == ({}, [], False)
        return
    assert view.document in ([BEFORE, AFTER] if action == "document" else [BEFORE])
    assert rows(view) in ROWS.get(action, [[ONE]])
    outcomes = [call.outcome for call in view.calls]
    runs = [[Outcome.EAGER], [Outcome.EAGER, Outcome.CAPTURED]] if action == "run" else None
    assert outcomes in (runs or [[Outcome.EAGER]])
    assert sum(view.events.values()) in ((0, 1) if action == "event" else (0,))
    assert view.closed is False or action == "closing"
