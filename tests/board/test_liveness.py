"""Who is alive: whatever a worker leaves behind, only itself keeps it alive."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from board_worker import Worker, read

from ws_guard.board import Board, Slot
from ws_guard.board.format import Header
from ws_guard.board.liveness import exists, hold_lock, is_locked, pid_namespace, pid_start_ticks

if TYPE_CHECKING:
    from collections.abc import Callable


def is_slot_locked(path: str) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


# -- the lock ---------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "file"
    path.write_text("")
    return str(path)


def test_a_lock_is_seen_through_a_descriptor_for_reading(file: str) -> None:
    holder = os.open(file, os.O_RDWR)
    assert not is_slot_locked(file)
    hold_lock(holder)
    assert is_slot_locked(file)
    os.close(holder)
    assert not is_slot_locked(file)


def test_asking_takes_nothing(file: str) -> None:
    readers = [os.open(file, os.O_RDONLY) for _ in range(2)]
    assert [is_locked(reader) for reader in readers] == [False, False]
    writer = os.open(file, os.O_RDWR)
    hold_lock(writer)
    assert [is_locked(reader) for reader in readers] == [True, True]
    for fd in (*readers, writer):
        os.close(fd)


def test_asking_frees_nothing(file: str) -> None:
    """Closing any descriptor would free a POSIX lock of the process; this one is no such."""
    writer, second = os.open(file, os.O_RDWR), os.open(file, os.O_RDWR)
    hold_lock(writer)
    assert is_slot_locked(file)
    with pytest.raises(BlockingIOError):
        hold_lock(second)
    assert is_slot_locked(file)
    for fd in (writer, second):
        os.close(fd)


def test_a_lock_for_reading_is_no_workers(file: str) -> None:
    """Backup and copy programs take such locks."""
    copier = os.open(file, os.O_RDONLY)
    flock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(copier, fcntl.F_OFD_SETLK, flock)
    assert not is_slot_locked(file)
    os.close(copier)


# -- processes --------------------------------------------------------------------------------


def test_a_worker_is_alive_until_it_is_killed(board: Board, start: Callable[..., Worker]) -> None:
    worker = start("hold")
    assert read(board, worker.slot).alive
    assert read(board, worker.slot).pid == worker.process.pid
    worker.kill()
    view = read(board, worker.slot)
    assert (view.alive, view.closed) == (False, False)


def test_a_killed_worker_is_dead_before_it_is_reaped(
    board: Board, start: Callable[..., Worker]
) -> None:
    worker = start("hold")
    worker.process.kill()
    os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
    assert pid_start_ticks(worker.process.pid)
    assert not read(board, worker.slot).alive


def test_a_worker_that_leaves_without_a_word_is_dead(
    board: Board, start: Callable[..., Worker]
) -> None:
    worker = start("exit_at_once")
    assert worker.process.wait() == 0
    assert not read(board, worker.slot).alive


def test_a_worker_that_leaves_in_good_order_takes_its_slot_along(
    board: Board, start: Callable[..., Worker]
) -> None:
    worker = start("leave")
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait() == 0
    assert os.listdir(board.path) == []


def test_a_forked_child_does_not_keep_its_dead_parent_alive(
    board: Board, start: Callable[..., Worker]
) -> None:
    worker = start("fork")
    assert read(board, worker.slot).alive
    worker.kill()
    assert is_slot_locked(worker.slot), "the child has inherited the lock"
    assert not read(board, worker.slot).alive


def test_a_forked_child_that_drops_the_slot_frees_nothing(
    board: Board, start: Callable[..., Worker]
) -> None:
    worker = start("fork_and_drop")
    assert is_slot_locked(worker.slot)
    assert read(board, worker.slot).alive
    worker.kill()
    assert not is_slot_locked(worker.slot)


def test_a_program_that_a_worker_started_inherits_no_lock(start: Callable[..., Worker]) -> None:
    worker = start("spawn")
    assert is_slot_locked(worker.slot)
    worker.kill()
    assert not is_slot_locked(worker.slot)


def test_a_process_that_becomes_another_program_is_no_worker(
    board: Board, start: Callable[..., Worker]
) -> None:
    worker = start("become_another_program")
    while is_slot_locked(worker.slot):
        assert worker.process.poll() is None
    assert not read(board, worker.slot).alive
    assert worker.process.poll() is None


def test_another_process_with_the_same_pid_is_not_the_worker(board: Board, slot: Slot) -> None:
    assert read(board, slot.path).alive
    slot.words[Header.PID_START_TICKS] += 1
    assert not read(board, slot.path).alive


@pytest.mark.parametrize("pid", [1 << 22, 1 << 31, (1 << 64) - 1])
def test_a_pid_that_nobody_has_is_dead(board: Board, slot: Slot, pid: int) -> None:
    """The kernel gives pids below 2^22."""
    slot.words[Header.PID] = pid
    assert not read(board, slot.path).alive


@pytest.mark.parametrize("word", [Header.PID_NAMESPACE, Header.PID_START_TICKS])
def test_where_pids_tell_nothing_the_lock_decides(board: Board, slot: Slot, word: Header) -> None:
    slot.words[Header.PID] = 1 << 22
    slot.words[word] = 0
    assert read(board, slot.path).alive


@pytest.mark.usefixtures("root")
def test_a_worker_in_another_pid_namespace_is_judged_by_its_lock(
    board: Board, start: Callable[..., Worker]
) -> None:
    prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    worker = start("hold", prefix=prefix)
    view = read(board, worker.slot)
    assert (view.pid, view.alive) == (1, True)
    worker.kill()
    while is_slot_locked(worker.slot):
        pass  # until the kernel has passed the signal on
    assert not read(board, worker.slot).alive


@pytest.mark.usefixtures("root")
def test_a_worker_that_proc_hides_is_alive(open_path: Path, start: Callable[..., Worker]) -> None:
    """A reader of another user, where /proc shows everybody only what is theirs."""
    nobody = 65_534
    os.chown(open_path, -1, nobody)
    board = Board(str(open_path), nobody)
    worker = start("hold", on=board)
    hide = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    hidden = {"prefix": ["unshare", "--mount", "sh", "-c", hide, "sh"], "user": nobody}
    reader = start("look", worker.slot, on=board, **hidden)
    assert reader.told == "start ticks 0, alive True"
    worker.kill()
    reader = start("look", worker.slot, on=board, **hidden)
    assert reader.told == "start ticks 0, alive False"


# -- what /proc says --------------------------------------------------------------------------


def test_start_ticks_tell_processes_apart(start: Callable[..., Worker]) -> None:
    worker = start("hold")
    assert 0 < pid_start_ticks(os.getpid()) <= pid_start_ticks(worker.process.pid)
    worker.kill()
    assert pid_start_ticks(worker.process.pid) == 0


def test_a_command_name_with_brackets_and_spaces_is_no_trap(tmp_path: Path) -> None:
    """The kernel shows the first 15 bytes of the name between brackets, whatever they are."""
    trap = tmp_path / "a) 1 (2 3) 4"
    trap.symlink_to("/bin/sleep")
    pid = os.posix_spawn(str(trap), [str(trap), "60"], {})
    try:
        line = b""
        while b"4) " not in line:
            line = Path(f"/proc/{pid}/stat").read_bytes()
        assert pid_start_ticks(pid) == int(line.split(b"4) ")[1].split()[19]) > 0
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_the_pid_namespace_is_that_of_proc() -> None:
    assert os.readlink("/proc/self/ns/pid") == f"pid:[{pid_namespace()}]"


def test_pids_that_cannot_be_are_nobody() -> None:
    # The kernel's pids end at 2**22; beyond an int Python itself refuses.
    assert [exists(os.getpid()), exists(1 << 22), exists(1 << 200)] == [True, False, False]
