"""Coming by a slot: no file system is waited for longer than a few seconds."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest
from board_worker import read

from ws_guard.board import Board, Slot, in_time, open_slot
from ws_guard.board.opening import served_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_board_that_answers_has_the_slot(board: Board) -> None:
    slot = open_slot(board)
    view = read(board, slot.path)
    assert (view.pid, view.alive, slot.problem) == (os.getpid(), True, "")
    slot.close()


def test_a_slot_that_comes_too_late_is_given_back(board: Board) -> None:
    answering, given_back = threading.Event(), threading.Event()

    def slow() -> Slot:
        answering.wait()
        return Slot.on_board(board)

    def close(slot: Slot) -> None:
        slot.close()
        given_back.set()

    with pytest.raises(TimeoutError, match=r"^did not answer within 0\.01 s$"):
        in_time(slow, close, seconds=0.01)
    answering.set()
    assert given_back.wait(60)
    assert os.listdir(board.path) == []


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    def fail() -> NoReturn:
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        in_time(fail)


def test_memory_and_disks_are_nobody_elses(board: Board, mount: Callable[..., Path]) -> None:
    """`tests/engine_first/test_boards.py` mounts one that is."""
    assert served_by(str(mount("tmpfs", "size=1m") / "not" / "yet")) == ""
    assert served_by(str(mount("ramfs", "mode=0700"))) == ""
    assert served_by(board.path) == ""
    assert served_by("a\0b") == ""
