"""A worker that begets another process in one of many ways: `descendants.py BOARD WAY`.

Every process says its name and pid on stdout once it has made its calls, and then waits: it ends
when it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, NoReturn

from bare_op import Decode, installed_over

import ws_guard
from ws_guard.board.liveness import is_locked

if TYPE_CHECKING:
    from collections.abc import Callable

#: Native calls of a worker before and after it begets, and of its child.
BEFORE, AFTER, CHILDS = 100, 5, 10


class Worker:
    """This process under the probe."""

    def __init__(self, board: str) -> None:
        self.board = board
        probe = ws_guard.install(board=board)
        self._op = installed_over(probe, lambda *_args: None)
        self._arguments = Decode(probe._contract).arguments(16)

    def call(self, times: int) -> None:
        for _ in range(times):
            self._op(*self._arguments)


def say(name: str) -> None:
    os.write(1, f"{name} {os.getpid()}\n".encode())


def wait() -> NoReturn:
    while True:
        time.sleep(60)


def live_as_child(worker: Worker, calls: int = CHILDS) -> NoReturn:
    worker.call(calls)
    say("child")
    wait()


def begin_anew(board: str) -> NoReturn:
    """A child that knows nothing of its parent's probe."""
    live_as_child(Worker(board))


# -- ways to beget ----------------------------------------------------------------------------


def fork(worker: Worker, calls: int = CHILDS) -> None:
    if os.fork() == 0:
        live_as_child(worker, calls)


def fork_silent(worker: Worker) -> None:
    """Most forked children never make a native call."""
    fork(worker, 0)


def c_fork(worker: Worker, calls: int = CHILDS) -> None:
    """Behind Python's back: none of its hooks runs."""
    if ctypes.CDLL(None).fork() == 0:
        live_as_child(worker, calls)


def c_fork_silent(worker: Worker) -> None:
    c_fork(worker, 0)


def c_fork_ends(_worker: Worker) -> None:
    """The child ends as a Python program does: exit handlers run."""
    pid = ctypes.CDLL(None).fork()
    if pid == 0:
        sys.exit(0)
    os.waitpid(pid, 0)


def _multiprocessing(method: str, worker: Worker) -> None:
    context = multiprocessing.get_context(method)
    if method == "fork":
        child = context.Process(target=live_as_child, args=(worker,))
    else:
        child = context.Process(target=begin_anew, args=(worker.board,))
    child.start()


def posix_spawn(_worker: Worker) -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    os.write(1, f"child {pid}\n".encode())


def _subprocess(close_fds: bool, _worker: Worker) -> None:
    child = subprocess.Popen(["/bin/sleep", "600"], close_fds=close_fds)
    os.write(1, f"child {child.pid}\n".encode())


def execv_other(worker: Worker) -> NoReturn:
    """The worker becomes a program that is none."""
    worker.call(AFTER)
    say("worker")
    os.execv("/bin/cat", ["cat"])  # noqa: S606 - the point of it


def execv_worker(worker: Worker) -> NoReturn:
    """The worker becomes another one."""
    worker.call(AFTER)
    os.execv(sys.executable, [sys.executable, __file__, worker.board, ""])  # noqa: S606 - likewise


def _daemonise(leave: Callable[[int], object], worker: Worker) -> None:
    """Fork, begin a session, fork, and have both ancestors leave."""
    worker.call(AFTER)
    say("worker")
    if os.fork():
        leave(0)
    os.setsid()
    if os.fork():
        leave(0)
    for name in os.listdir(worker.board):
        _wait_for_the_end_of(os.path.join(worker.board, name))
    live_as_child(worker)


def _wait_for_the_end_of(slot: str) -> None:
    with contextlib.suppress(FileNotFoundError), open(slot, "rb") as file:
        while is_locked(file.fileno()):
            time.sleep(0.01)


WAYS: dict[str, Callable[[Worker], None]] = {
    "os.fork": fork,
    "os.fork, no call": fork_silent,
    "libc fork": c_fork,
    "libc fork, no call": c_fork_silent,
    "libc fork, ends": c_fork_ends,
    "multiprocessing fork": functools.partial(_multiprocessing, "fork"),
    "multiprocessing spawn": functools.partial(_multiprocessing, "spawn"),
    "multiprocessing forkserver": functools.partial(_multiprocessing, "forkserver"),
    "os.posix_spawn": posix_spawn,
    "subprocess": functools.partial(_subprocess, True),
    "subprocess, descriptors kept": functools.partial(_subprocess, False),
    "os.execv of another program": execv_other,
    "os.execv of a worker": execv_worker,
    "daemonised by os._exit": functools.partial(_daemonise, os._exit),
    "daemonised by sys.exit": functools.partial(_daemonise, sys.exit),
}


def main(board: str, way: str) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
    if not way:
        begin_anew(board)
    worker = Worker(board)
    worker.call(BEFORE)
    WAYS[way](worker)
    worker.call(AFTER)
    say("worker")
    wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
