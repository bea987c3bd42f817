"""Boards that are full, gone, read-only or silent: the engine runs on, one line says so, and the
exporter is not ready.

Each is a real one: file systems are mounted, filled and silenced, which takes root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from wary import ROUND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from served import Exporter
    from wary import Worker

NOBODY = 65_534


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def fill(board: Path) -> None:
    """Take the last byte of a file system."""
    with (board / ".filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def the_only(lines: list[str]) -> str:
    (line,) = lines
    return line


# -- full -------------------------------------------------------------------------------------


def test_a_board_that_is_full(
    mount: Callable[..., Path], worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    board = mount("-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs")
    watched, engine = exporter(board), worker(board)
    engine.call()
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    line = the_only(engine.end())
    assert f"not observed: board {board}: [Errno 28] No space left on device" in line
    assert os.listdir(board) == []
    watched.stop()


def test_a_board_that_fills_later(
    mount: Callable[..., Path], worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    """All of a slot was reserved: nothing is lost, and nobody need be told."""
    board = mount("-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs")
    watched, engine = exporter(board), worker(board)
    watched.wait_until(200)
    fill(board)
    assert os.statvfs(board).f_bfree == 0
    for _ in range(3):
        engine.call()
    engine.describe(15_000)
    watched.wait_for_calls(3 * ROUND)
    # What the worker met, a refused call, is told as ever.
    watched.wait_until(503, "[-]no_overflow failed")
    assert engine.end() == []
    watched.stop()


# -- read-only --------------------------------------------------------------------------------


def test_a_board_that_is_mounted_read_only(
    mount: Callable[..., Path], worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    board = mount("-t", "tmpfs", "-o", "ro,mode=0700", "tmpfs")
    watched, engine = exporter(board), worker(board)
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    assert "[Errno 30] Read-only file system" in the_only(engine.end())
    watched.stop()


def test_a_board_that_is_to_become_read_only(
    mount: Callable[..., Path], worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    """While a worker writes to it, the kernel refuses; an exporter may see it read-only."""
    board = mount("-t", "tmpfs", "-o", "mode=0700", "tmpfs")
    engine = worker(board)
    command = ["mount", "-o", "remount,ro", str(board)]
    assert subprocess.run(command, capture_output=True, check=False).returncode
    aside = mount("--bind", "-o", "ro", str(board))
    with pytest.raises(OSError, match="Read-only"):
        (aside / "mine").touch()
    watched = exporter(aside)
    watched.wait_until(200)
    engine.call()
    watched.wait_for_calls(ROUND)
    assert engine.end() == []
    watched.stop()


@pytest.mark.usefixtures("root")
def test_a_board_that_may_not_be_written_to(
    open_path: Path, worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    """A shared one, of a group that may only look into it."""
    board = open_path / "board"
    board.mkdir(mode=0o755)
    os.chown(board, -1, NOBODY)
    shared = {"WS_GUARD_BOARD_GROUP": str(NOBODY)}
    watched, engine = exporter(board, **shared), worker(board, str(NOBODY), **shared)
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    assert "[Errno 13] Permission denied" in the_only(engine.end())
    watched.stop()


# -- gone -------------------------------------------------------------------------------------


def test_a_shared_board_that_nobody_made(
    tmp_path: Path, worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    board, shared = tmp_path / "board", {"WS_GUARD_BOARD_GROUP": str(os.getegid())}
    watched, engine = exporter(board, **shared), worker(board, **shared)
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    assert f"not observed: board {board}: No such file or directory" in the_only(engine.end())
    watched.stop()


def test_a_board_that_is_removed_under_its_worker(
    tmp_path: Path, worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    board = tmp_path / "board"
    watched, engine = exporter(board), worker(board)
    watched.wait_until(200)
    shutil.rmtree(board)
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    for _ in range(3):
        engine.call()
        engine.describe(10)
    # Another in its place is another board.
    board.mkdir(mode=0o700)
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    line = the_only(engine.end())
    assert f"no longer observed: somebody has removed {board}" in line
    assert os.listdir(board) == []
    watched.stop()


# -- silent -----------------------------------------------------------------------------------


def test_a_board_that_does_not_answer(
    silent: tuple[Path, subprocess.Popen[str]],
    worker: Callable[..., Worker],
    exporter: Callable[..., Exporter],
) -> None:
    """The server of its file system is stopped: every look at it waits for good."""
    board, server = silent
    watched = exporter(board)
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    stop(server)
    watched.wait_until(503, "[-]board_readable failed: the board cannot be read: the last good")
    engine = worker(board)
    engine.call()
    engine.describe(10)
    line = the_only(engine.end())
    assert f"not observed: board {board} did not answer within 5 s" in line
    watched.stop()


def test_a_board_that_somebody_else_serves(
    silent: tuple[Path, subprocess.Popen[str]],
    worker: Callable[..., Worker],
    exporter: Callable[..., Exporter],
) -> None:
    """It answers now. A store into a mapped slot would wait for it once it does not."""
    board, server = silent
    watched, engine = exporter(board / "below"), worker(board / "below")
    engine.call()
    stop(server)
    engine.call()
    line = the_only(engine.end())
    assert f"not observed: board {board}/below is on fuse, whose server" in line
    watched.wait_until(503)
    watched.stop()
