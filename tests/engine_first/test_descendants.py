"""Processes of every descent: each call is counted once, and nobody is alive who is not."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from descendants import AFTER, BEFORE, CHILDS, WAYS

from ws_guard.exporter.snapshot import BoardWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ws_guard.board import Board

SCRIPT = Path(__file__).with_name("descendants.py")
PATIENCE = 60.0
WORKERS = BEFORE + AFTER


class Seen(NamedTuple):
    """What the exporter's reading end tells of a process: is it alive, and how many calls."""

    alive: bool
    calls: int


#: By way: what is seen of (worker, child) while all live; None where it has no slot.
LIVING: dict[str, tuple[Seen | None, Seen | None]] = {
    "os.fork": (Seen(True, WORKERS), Seen(True, CHILDS)),
    "os.fork, no call": (Seen(True, WORKERS), None),
    # No hook of Python's runs in such a child: its calls are its parent's, and counted once.
    "libc fork": (Seen(True, WORKERS + CHILDS), None),
    "libc fork, no call": (Seen(True, WORKERS), None),
    "libc fork, ends": (Seen(True, WORKERS), None),
    "multiprocessing fork": (Seen(True, WORKERS), Seen(True, CHILDS)),
    "multiprocessing spawn": (Seen(True, WORKERS), Seen(True, CHILDS)),
    "multiprocessing forkserver": (Seen(True, WORKERS), Seen(True, CHILDS)),
    "os.posix_spawn": (Seen(True, WORKERS), None),
    "subprocess": (Seen(True, WORKERS), None),
    "subprocess, descriptors kept": (Seen(True, WORKERS), None),
    # The process lives on under its pid, the worker in it does not.
    "os.execv of another program": (Seen(False, WORKERS), None),
    # It has the pid of the one before, whose slot it clears away as that of a dead predecessor.
    "os.execv of a worker": (None, Seen(True, CHILDS)),
    "daemonised by os._exit": (None, Seen(True, CHILDS)),
    "daemonised by sys.exit": (None, Seen(True, CHILDS)),
}
#: Ways after which there is no child to wait for.
CHILDLESS = {"libc fork, ends", "os.execv of another program"}
#: Ways after which there is no worker to wait for.
ORPHANS = {"os.execv of a worker"}


class Family:
    """A worker and its child; `pids` by name, once each has said that its calls are made."""

    def __init__(self, board: Board, way: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), board.path, way],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pids: dict[str, int] = {}
        names = {"worker", "child"} - ({"child"} if way in CHILDLESS else set())
        for _ in names - ({"worker"} if way in ORPHANS else set()):
            name, pid = self._line().split()
            self.pids[name] = int(pid)
        if way == "os.execv of another program":
            self._wait_for_an_answer()

    def _wait_for_an_answer(self) -> None:
        """It has become `cat`."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"cat\n")
        self.process.stdin.flush()
        assert self._line() == "cat\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert ready
        # Unbuffered: select sees nothing of what a buffer holds.
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self.process.stdout.fileno(), 1)
            assert byte, "it ended"
            line += byte
        return line.decode()

    def kill(self, name: str) -> None:
        """End one, and return once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[name], signal.SIGKILL)
        if self.pids[name] == self.process.pid:
            self.process.wait()
        while _is_running(self.pids[name]):
            time.sleep(0.01)

    def end(self) -> None:
        for name in self.pids:
            self.kill(name)
        self.process.kill()
        self.process.communicate()


def _is_running(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def beget(board: Board) -> Iterator[Callable[[str], Family]]:
    families: list[Family] = []

    def make(way: str) -> Family:
        families.append(Family(board, way))
        return families[-1]

    yield make
    for family in families:
        family.end()


def seen(watch: BoardWatch) -> dict[int, list[Seen]]:
    """What is seen of each pid."""
    snapshot = watch.read()
    assert (snapshot.state, snapshot.fault, snapshot.read_errors) == ("read", "", 0)
    found: dict[int, list[Seen]] = {}
    for one in snapshot.slots:
        calls = sum(sum(op.calls.values()) for op in one.worker.ops)
        assert one.worker.probe_errors == 0
        found.setdefault(one.worker.pid, []).append(Seen(one.worker.alive, calls))
    return found


def expected(family: Family, living: tuple[Seen | None, Seen | None], *dead: str) -> object:
    """What must be seen once the `dead` are."""
    found = {}
    for name, told in zip(("worker", "child"), living, strict=True):
        if told is not None:
            found[family.pids[name]] = [told._replace(alive=told.alive and name not in dead)]
    return found


@pytest.mark.parametrize("way", WAYS)
def test_each_call_is_counted_once_and_nobody_outlives_himself(
    way: str, board: Board, beget: Callable[[str], Family]
) -> None:
    family, watch = beget(way), BoardWatch(board)
    assert seen(watch) == expected(family, LIVING[way])
    if "worker" in family.pids:
        family.kill("worker")
        # Whatever the child has inherited: it is not the worker.
        assert seen(watch) == expected(family, LIVING[way], "worker")
    if "child" in family.pids:
        family.kill("child")
        assert seen(watch) == expected(family, LIVING[way], "worker", "child")
