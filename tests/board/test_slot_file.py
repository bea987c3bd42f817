"""A slot's file: who may read it, when it goes, and how a worker lives where it cannot be."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from board_worker import Worker, make_shape, read

from ws_guard.board import Board, Slot
from ws_guard.board.format import COUNT_EAGER, EXACT_ROWS, SLOT_BYTES, Header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=[0, 0o077], ids=oct)
def any_umask(request: pytest.FixtureRequest) -> Iterator[None]:
    umask = os.umask(request.param)
    yield
    os.umask(umask)


def mode_of(path: str | None) -> int:
    assert path is not None
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.mark.usefixtures("any_umask")
def test_a_private_slot_is_for_its_user_alone(board: Board) -> None:
    opened = Slot.on_board(board)
    assert mode_of(board.path) == 0o700
    assert mode_of(opened.path) == 0o600
    opened.close()


@pytest.mark.usefixtures("any_umask")
def test_a_shared_slot_is_for_the_boards_group_to_read(tmp_path: Path) -> None:
    group = 65_534 if os.geteuid() == 0 else os.getegid()
    os.chown(tmp_path, -1, group)
    opened = Slot.on_board(Board(str(tmp_path), group))
    assert opened.path is not None
    assert mode_of(opened.path) == 0o640
    assert os.stat(opened.path).st_gid == group
    opened.close()


def test_a_slot_has_all_its_bytes_and_one_name(board: Board, slot: Slot) -> None:
    assert slot.path is not None
    assert os.listdir(board.path) == [os.path.basename(slot.path)]
    found = os.stat(slot.path)
    assert found.st_size == SLOT_BYTES
    assert found.st_blocks * 512 >= SLOT_BYTES


def test_slots_of_one_process_have_different_names(board: Board) -> None:
    slots = [Slot.on_board(board) for _ in range(20)]
    assert len(os.listdir(board.path)) == 20
    for opened in slots:
        opened.close()
    assert os.listdir(board.path) == []


def test_close_removes_and_marks(board: Board, slot: Slot) -> None:
    assert slot.path is not None
    with open(slot.path, "rb") as file:
        slot.close()
        words = memoryview(file.read()).cast("Q")
    assert words[Header.CLOSED_NS] >= words[Header.ATTACHED_NS]
    assert os.listdir(board.path) == []


def test_drop_leaves_the_file_as_it_is(board: Board, slot: Slot) -> None:
    path = slot.path
    slot.describe({"rank": "3"})
    slot.drop()
    view = read(board, path)
    assert (view.document, view.closed, view.alive) == ({"rank": "3"}, False, False)


def test_close_after_drop_does_nothing(board: Board, slot: Slot) -> None:
    slot.drop()
    slot.close()
    slot.close()
    assert len(os.listdir(board.path)) == 1


def test_no_descriptor_is_left(board: Board) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        Slot.on_board(board).close()
        Slot.on_board(board).drop()
    assert os.listdir("/proc/self/fd") == before


# -- where it cannot be -----------------------------------------------------------------------


def assert_counts_in_memory(slot: Slot, problem: str) -> None:
    assert slot.path is None
    assert problem in slot.problem
    _, row, _ = slot.add_row(make_shape(), 0)
    slot.words[row + COUNT_EAGER] += 1
    slot.describe({"rank": "3"})
    slot.close()


def test_a_file_in_the_boards_place_costs_only_the_sight(board: Board) -> None:
    Path(board.path).write_text("")
    assert_counts_in_memory(Slot.on_board(board), f"board {board.path} is not a directory")


def test_a_path_that_can_be_none_costs_only_the_sight() -> None:
    # "null byte" up to Python 3.12, "null character" since.
    assert_counts_in_memory(Slot.on_board(Board("a\0b")), "embedded null ")


@pytest.mark.parametrize("spare", [1, 2])
def test_no_descriptors_cost_only_the_sight(board: Board, spare: int) -> None:
    """One descriptor short at the file, or at the mapping's own copy of it."""
    board.prepare()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare - 1, hard))
    try:
        opened = Slot.on_board(board)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_counts_in_memory(opened, "Too many open files")
    assert os.listdir(board.path) == []


def test_a_worker_outlives_its_board(board: Board, slot: Slot) -> None:
    assert slot.path is not None
    os.unlink(slot.path)
    os.rmdir(board.path)
    _, row, _ = slot.add_row(make_shape(), 0)
    slot.words[row + COUNT_EAGER] += 1
    slot.describe({"rank": "3"})
    slot.close()


def test_a_full_file_system_costs_only_the_sight(mount: Callable[..., Path]) -> None:
    board = Board(str(mount("tmpfs", "size=1m") / "board"))
    assert_counts_in_memory(Slot.on_board(board), "No space left on device")
    assert os.listdir(board.path) == []


def test_a_file_system_that_fills_later_kills_no_worker(
    mount: Callable[..., Path], start: Callable[..., Worker]
) -> None:
    board = Board(str(mount("tmpfs", "size=4m")))
    worker = start("fill_board_then_write_everywhere", on=board)
    rows = read(board, worker.slot).rows
    assert os.statvfs(board.path).f_bfree == 0
    assert [row.eager for row in rows] == [1] * EXACT_ROWS
    assert worker.process.poll() is None
    worker.stop()


def test_a_file_system_that_reserves_nothing_is_written_through(
    mount: Callable[..., Path],
) -> None:
    """ramfs has no fallocate: the C library writes the bytes instead."""
    board = Board(str(mount("ramfs", "mode=0700")))
    opened = Slot.on_board(board)
    assert not opened.problem
    assert os.path.getsize(str(opened.path)) == SLOT_BYTES
    opened.close()
