"""Reading a whole board: what is on it, what should not be, and what cannot be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from ws_guard.board import Board, Slot
from ws_guard.board.format import SLOT_BYTES, Header
from ws_guard.exporter.snapshot import BoardWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen

    from conftest import Attach


def test_an_absent_board_has_nobody(watch: BoardWatch) -> None:
    snapshot = watch.read()
    assert (snapshot.state, snapshot.fault, snapshot.slots) == ("absent", "", ())
    assert snapshot.read_errors == 0


def test_a_board_that_comes_and_goes(attach: Attach, watch: BoardWatch, board: Board) -> None:
    watch.read()
    worker = attach()
    assert [one.slot for one in watch.read().slots] == [worker.name]
    worker.close()
    os.rmdir(board.path)
    assert (watch.read().state, watch.read().slots) == ("absent", ())


def test_a_worker_that_closes_has_left(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    watch.read()
    worker.close()
    snapshot = watch.read()
    assert (snapshot.state, snapshot.slots, snapshot.read_errors) == ("read", (), 0)


def test_a_closed_slot_that_could_not_be_removed_has_left(
    attach: Attach, watch: BoardWatch
) -> None:
    attach().slot.words[Header.CLOSED_NS] = 1
    assert watch.read().slots == ()


def test_a_worker_that_has_not_said_who_it_is_has_not_attached(
    board: Board, watch: BoardWatch
) -> None:
    slot = Slot.on_board(board)
    snapshot = watch.read()
    slot.close()
    assert (snapshot.slots, snapshot.unreadable) == ((), ())


def test_a_killed_worker_is_dead(spawn: Callable[..., Popen[str]], watch: BoardWatch) -> None:
    process = spawn()
    (observed,) = watch.read().slots
    assert (observed.worker.alive, observed.worker.pid) == (True, process.pid)
    process.kill()
    process.wait()
    (observed,) = watch.read().slots
    assert not observed.worker.alive


BAD_FILES = {
    "empty": (b"", "it has 0 bytes, a slot has"),
    "short": (b"x" * 1_000, "it has 1000 bytes, a slot has"),
    "garbage": (os.urandom(SLOT_BYTES), "it is not a slot"),
    "large": (b"\0" * ((2 << 20) + 1), "it has 2097153 bytes, a slot has"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_that_is_no_slot_counts_once(
    attach: Attach, watch: BoardWatch, board: Board, kind: str
) -> None:
    content, reason = BAD_FILES[kind]
    worker = attach()
    Path(board.path, "bad.slot").write_bytes(content)
    for _ in range(3):
        snapshot = watch.read()
        assert snapshot.read_errors == 1
        assert [one.slot for one in snapshot.slots] == [worker.name]
    assert snapshot.unreadable[0].startswith(reason)


def test_another_bad_file_in_its_place_counts_again(
    attach: Attach, watch: BoardWatch, board: Board
) -> None:
    attach()
    bad = Path(board.path, "bad.slot")
    bad.write_bytes(b"")
    assert watch.read().read_errors == 1
    bad.write_bytes(b"x")  # the same file for another reason
    assert watch.read().read_errors == 2
    Path(board.path, ".new").write_bytes(b"x")
    Path(board.path, ".new").rename(bad)  # another file for the same reason
    assert watch.read().read_errors == 3


def test_what_lies_on_a_board_by_mistake(
    attach: Attach, watch: BoardWatch, board: Board, tmp_path: Path
) -> None:
    worker = attach()
    real = Path(board.path, worker.name)
    Path(board.path, "notes.txt").write_text("mine")
    Path(board.path, "link.slot").symlink_to(real)
    os.mkfifo(Path(board.path, "fifo.slot"))
    Path(board.path, "dir.slot").mkdir()
    (tmp_path / "outside").write_bytes(b"")
    Path(board.path, "hard.slot").hardlink_to(tmp_path / "outside")
    Path(board.path, ".hidden").write_text("a slot in the making")
    snapshot = watch.read()
    assert [one.slot for one in snapshot.slots] == [worker.name]
    assert sorted(snapshot.unreadable) == [
        "Too many levels of symbolic links",
        "it has 2 links",
        "it is not a regular file",
        "it is not a regular file",
        "no slot by its name",
    ]
    assert snapshot.read_errors == 5


def test_a_newer_format_is_passed_over(attach: Attach, watch: BoardWatch) -> None:
    attach().slot.words[Header.VERSION] = 2
    snapshot = watch.read()
    assert snapshot.slots == ()
    told = "it has format version 2, known is 1: its worker has a newer ws-guard"
    assert snapshot.unreadable == (told,)


def test_a_slot_truncated_under_us(attach: Attach, watch: BoardWatch, board: Board) -> None:
    worker = attach()
    worker.call(1)
    assert watch.read().slots
    os.truncate(Path(board.path, worker.name), 40_000)
    snapshot = watch.read()
    assert snapshot.slots == ()
    assert snapshot.unreadable[0].startswith("it ends at byte")


def test_a_slot_of_a_stranger_is_not_read(
    attach: Attach, watch: BoardWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach()
    monkeypatch.setattr(Board, "trusts", lambda _, uid: uid != os.getuid())
    snapshot = watch.read()
    assert snapshot.slots == ()
    assert snapshot.unreadable == (f"it belongs to uid {os.getuid()}, which is not trusted",)


def test_a_document_that_is_no_json_is_passed_over(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    worker.slot.describe([1, 2])  # type: ignore[arg-type]  # that is the point
    assert watch.read().unreadable == ("its document is not an object",)


def test_the_worker_of_another_file_under_the_same_name_is_another(
    attach: Attach, watch: BoardWatch, board: Board
) -> None:
    one, other = attach(rank="1"), attach(rank="2")
    assert len(watch.read().slots) == 2
    Path(board.path, other.name).rename(Path(board.path, one.name))
    (observed,) = watch.read().slots
    assert observed.worker.rank == "2"


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_board_that_fails_keeps_its_last_good_read(
    attach: Attach, watch: BoardWatch, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    worker = attach()
    watch.read()

    def fail(_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("ws_guard.exporter.snapshot.list_slots", fail)
    for errors in (1, 2, 3):  # a failing directory counts each time
        snapshot = watch.read()
        assert snapshot.fault == os.strerror(code)
        assert snapshot.read_errors == errors
    assert [one.slot for one in snapshot.slots] == [worker.name]
    monkeypatch.undo()
    assert (watch.read().fault, watch.read().read_errors) == ("", 3)


def test_a_board_without_permission(attach: Attach, watch: BoardWatch, board: Board) -> None:
    attach()
    Path(board.path).chmod(0)
    user = os.geteuid()
    if user == 0:
        # root reads everything: be somebody else for a moment, on a board of theirs.
        os.chown(board.path, 65_534, -1)
        for parent in Path(board.path).parents[:3]:
            parent.chmod(0o755)
        os.seteuid(65_534)
    try:
        assert watch.read().fault == "Permission denied"
    finally:
        os.seteuid(user)
        Path(board.path).chmod(0o700)


def test_a_board_of_somebody_else(
    attach: Attach, watch: BoardWatch, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach()
    monkeypatch.setattr(os, "geteuid", lambda: 4_242)
    fault = watch.read().fault
    assert fault.startswith(f"the board belongs to uid {os.getuid()}, not to 4242")
    assert board.path not in fault


def test_a_board_that_is_a_file(watch: BoardWatch, board: Board) -> None:
    Path(board.path).write_text("")
    assert watch.read().fault == "the board is not a directory; set WS_GUARD_BOARD"


def test_reading_leaves_no_trace(attach: Attach, watch: BoardWatch, board: Board) -> None:
    worker = attach()
    worker.call(5)
    path = Path(board.path, worker.name)
    before = (path.read_bytes(), path.stat().st_mtime_ns, os.listdir(board.path))
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        watch.read()
    assert (path.read_bytes(), path.stat().st_mtime_ns, os.listdir(board.path)) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
