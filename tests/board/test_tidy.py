"""What a starting worker removes from the board, and what it lets stand."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from board_worker import Worker, run_script

from ws_guard.board import Board, Slot, remove_dead
from ws_guard.board.tidy import LEFTOVER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65_534


@pytest.fixture
def leave_dead(board: Board) -> Callable[..., str]:
    """Leaves a dead slot on the board; its name."""

    def leave_one(**document: object) -> str:
        slot = Slot.on_board(board)
        if document:
            slot.describe(document)
        name = os.path.basename(str(slot.path))
        slot.drop()
        return name

    return leave_one


def test_dead_slots_of_the_same_identity_go(
    board: Board, slot: Slot, leave_dead: Callable[..., str]
) -> None:
    slot.describe({"engine": "0", "rank": "3"})
    dead = [leave_dead(engine="0", rank="3", layout="B") for _ in range(3)]
    assert remove_dead(board, "0", "3", slot.path) == sorted(dead)
    assert os.listdir(board.path) == [os.path.basename(str(slot.path))]


def test_dead_slots_of_others_stay(board: Board, leave_dead: Callable[..., str]) -> None:
    for engine, rank in (("1", "3"), ("0", "4"), ("3", "0"), (0, 3)):
        leave_dead(engine=engine, rank=rank)
    assert remove_dead(board, "0", "3", None) == []
    assert len(os.listdir(board.path)) == 4


def test_a_slot_that_never_said_whose_it_is_goes(
    board: Board, leave_dead: Callable[..., str]
) -> None:
    assert remove_dead(board, "0", "3", None) == []
    silent = leave_dead()
    assert remove_dead(board, "0", "3", None) == [silent]


def test_live_slots_stay(board: Board, start: Callable[..., Worker]) -> None:
    """Even one of the same identity: the exporter tells of the clash."""
    worker = start("hold")
    assert remove_dead(board, "0", "3", None) == []
    worker.kill()
    assert remove_dead(board, "0", "3", None) == [os.path.basename(worker.slot)]


def test_a_slot_goes_although_a_child_of_its_worker_holds_it(
    board: Board, start: Callable[..., Worker]
) -> None:
    worker = start("fork")
    assert remove_dead(board, "0", "3", None) == []
    worker.kill()
    assert remove_dead(board, "0", "3", None) == [os.path.basename(worker.slot)]


def test_the_callers_own_slot_stays(board: Board, leave_dead: Callable[..., str]) -> None:
    own = leave_dead(engine="0", rank="3")
    assert remove_dead(board, "0", "3", os.path.join(board.path, own)) == []


@pytest.mark.parametrize("name", [".1.2.0.slot", ".1.18ecff7ecf4fa69a.3.slot"])
def test_a_slot_that_was_never_finished_goes_when_it_is_old(board: Board, name: str) -> None:
    board.prepare()
    leftover = Path(board.path, name)
    leftover.write_bytes(b"")
    assert remove_dead(board, "0", "3", None) == []
    long_ago = time.time() - LEFTOVER_SECONDS - 1
    os.utime(leftover, (long_ago, long_ago))
    assert remove_dead(board, "0", "3", None) == [name]


def test_a_slot_in_the_making_stays_however_long_it_takes(board: Board, slot: Slot) -> None:
    assert slot.path is not None
    hidden = os.path.join(board.path, "." + os.path.basename(slot.path))
    os.rename(slot.path, hidden)
    os.utime(hidden, (1, 1))
    assert remove_dead(board, "0", "3", None) == []
    os.rename(hidden, slot.path)


def test_what_is_no_slot_stays(board: Board) -> None:
    board.prepare()
    path = Path(board.path)
    (path / "notes.txt").write_text("")
    (path / ".hidden").write_text("")
    (path / "x.slot").mkdir()
    (path / ".y.slot").mkdir()
    (path / "z.slot").write_bytes(b"something else")
    (path / "link.slot").symlink_to("notes.txt")
    os.mkfifo(path / "fifo.slot")
    os.mkfifo(path / ".fifo.slot")
    for name in os.listdir(path):
        os.utime(path / name, (1, 1), follow_symlinks=False)
    assert remove_dead(board, "0", "3", None) == []
    assert len(os.listdir(path)) == 8


@pytest.mark.usefixtures("root")
def test_slots_of_another_user_stay(board: Board, leave_dead: Callable[..., str]) -> None:
    """Even where they are trusted and could be removed."""
    trusting = board._replace(trusted_uids=(NOBODY,))
    theirs = leave_dead(engine="0", rank="3")
    leftover = Path(board.path, ".1.2.0.slot")
    leftover.write_bytes(b"")
    os.utime(leftover, (1, 1))
    for path in (Path(board.path, theirs), leftover):
        os.chown(path, NOBODY, -1)
    assert remove_dead(trusting, "0", "3", None) == []
    os.chown(Path(board.path, theirs), os.geteuid(), -1)
    assert remove_dead(trusting, "0", "3", None) == [theirs]


@pytest.mark.parametrize("path", ["/nowhere", "/dev/null", "a\0b"])
def test_a_board_that_is_none_is_no_trouble(path: str) -> None:
    assert remove_dead(Board(path), "0", "3", None) == []


def test_a_slot_that_somebody_removes_first_stops_nothing(
    board: Board, leave_dead: Callable[..., str]
) -> None:
    """Two workers start at once: the other one is quicker at the first slot."""
    names = sorted(leave_dead(engine="0", rank="3") for _ in range(3))
    script = """
import os, sys
from ws_guard.board import Board, remove_dead
board, first = sys.argv[1:]
pending = [os.path.join(board, first)]
sys.addaudithook(lambda name, _: name == "os.remove" and pending and os.unlink(pending.pop()))
print(*remove_dead(Board(board), "0", "3", None))
"""
    assert run_script(script, board.path, names[0]).split() == names[1:]
    assert os.listdir(board.path) == []
