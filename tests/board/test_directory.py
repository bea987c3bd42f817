"""Boards: who may use which directory, and what is said to those who may not."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from board_worker import Worker, read

from ws_guard.board import Board, BoardError, SlotError, open_board

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65_534


def test_a_missing_private_board_is_made(board: Board) -> None:
    board.prepare()
    board.prepare()
    assert stat.S_IMODE(os.stat(board.path).st_mode) == 0o700


def test_a_missing_board_is_made_with_its_parents(tmp_path: Path) -> None:
    deep = Board(str(tmp_path / "a" / "b" / "board"))
    deep.prepare()
    assert os.path.isdir(deep.path)


def test_a_missing_board_is_absent_to_readers(board: Board) -> None:
    with pytest.raises(FileNotFoundError):
        board.check()


def test_whether_a_board_is_there(board: Board, tmp_path: Path) -> None:
    assert not board.is_there()
    board.prepare()
    assert board.is_there()
    (tmp_path / "file").write_text("")
    with pytest.raises(BoardError, match="file is not a directory; set WS_GUARD_BOARD"):
        Board(str(tmp_path / "file")).is_there()
    with pytest.raises(BoardError, match="board: Not a directory; set WS_GUARD_BOARD"):
        Board(str(tmp_path / "file" / "board")).is_there()


def test_a_missing_shared_board_is_not_made(tmp_path: Path) -> None:
    """Who mounts it chooses group and mode: one of our making would have neither."""
    shared = Board(str(tmp_path / "shared"), os.getegid())
    with pytest.raises(BoardError, match="shared: No such file or directory; set WS_GUARD_BOARD"):
        shared.prepare()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("group", [None, 0])
def test_a_file_is_no_board(tmp_path: Path, group: int | None) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(BoardError, match="file is not a directory; set WS_GUARD_BOARD"):
        Board(str(path), group).prepare()


def test_a_board_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BoardError, match="board: Not a directory; set WS_GUARD_BOARD"):
        Board(str(tmp_path / "file" / "board")).prepare()


@pytest.mark.usefixtures("root")
def test_a_board_that_may_not_be_made_says_why(
    open_path: Path, start: Callable[..., Worker]
) -> None:
    """A worker of another user, below a directory of root."""
    board = Board(str(open_path / "board"))
    worker = start("tell_problem", on=board, user=NOBODY)
    assert worker.told == f"board {board.path}: Permission denied; set WS_GUARD_BOARD"


@pytest.mark.usefixtures("root")
def test_a_private_board_of_another_user_is_refused(board: Board) -> None:
    board.prepare()
    os.chown(board.path, NOBODY, -1)
    with pytest.raises(BoardError, match="belongs to uid 65534, not to 0; set WS_GUARD_BOARD_GROU"):
        board.prepare()


@pytest.mark.usefixtures("root")
def test_a_link_that_another_user_planted_is_refused(board: Board, tmp_path: Path) -> None:
    os.symlink(tmp_path, board.path)
    board.prepare()
    os.lchown(board.path, NOBODY, NOBODY)
    with pytest.raises(BoardError, match="belongs to uid 65534"):
        board.prepare()


@pytest.mark.usefixtures("root")
def test_a_link_to_a_directory_of_another_user_is_refused(board: Board, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    os.symlink(theirs, board.path)
    with pytest.raises(BoardError, match="belongs to uid 65534"):
        board.prepare()


def test_a_shared_board_of_another_group_is_refused(tmp_path: Path) -> None:
    group = os.stat(tmp_path).st_gid
    Board(str(tmp_path), group).prepare()
    with pytest.raises(BoardError, match=f"has group {group}, WS_GUARD_BOARD_GROUP is {group + 1}"):
        Board(str(tmp_path), group + 1).prepare()


def test_a_group_goes_by_number_or_name(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert open_board(path, "1234", (5,)) == Board(path, 1234, (5,))
    assert open_board(path, "root") == Board(path, 0)
    assert open_board(path) == Board(path, None, ())
    with pytest.raises(BoardError, match="WS_GUARD_BOARD_GROUP='nobody-here'"):
        open_board(path, "nobody-here")


def test_who_is_trusted(tmp_path: Path) -> None:
    me, group = os.geteuid(), os.stat(tmp_path).st_gid
    private = Board(str(tmp_path), None, (me + 7,))
    assert [private.trusts(uid) for uid in (me, me + 7, me + 1)] == [True, True, False]
    shared = Board(str(tmp_path), group)
    assert [shared.trusts(uid) for uid in (me, me + 7)] == [True, False]


@pytest.mark.usefixtures("root")
def test_the_owner_of_a_shared_board_is_trusted(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, -1)
    shared = Board(str(tmp_path), os.stat(tmp_path).st_gid)
    assert shared.trusts(NOBODY)
    assert not shared.trusts(NOBODY - 1)
    assert not Board(str(tmp_path)).trusts(NOBODY)


@pytest.mark.usefixtures("root")
def test_users_of_a_shared_board_read_each_other_where_trusted(
    open_path: Path, start: Callable[..., Worker]
) -> None:
    """A worker of another user on root's board, as of an engine beside its sidecar."""
    os.chown(open_path, -1, NOBODY)
    os.chmod(open_path, 0o2770)  # noqa: S103 - shared with a group
    board = Board(str(open_path), NOBODY, (NOBODY,))
    worker = start("hold", on=board, user=NOBODY)
    assert read(board, worker.slot).alive
    with pytest.raises(SlotError, match="belongs to uid 65534, which is not trusted"):
        read(board._replace(trusted_uids=()), worker.slot)
