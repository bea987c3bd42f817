"""How a worker comes by its slot: it waits for no file system longer than a few seconds.

A board belongs in memory, where nothing waits. What another host or a process serves may never
answer again: then neither the start of an engine nor a store into a mapped slot would end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from .directory import Board
from .writer import Slot

#: A directory that has not answered by then is left alone.
PATIENCE_SECONDS = 5.0
#: File systems that somebody else serves, by how their types begin.
_SERVED = (
    *("nfs", "cifs", "smb", "9p", "fuse", "virtiofs", "ceph", "afs", "lustre", "gpfs", "beegfs"),
    *("glusterfs", "orangefs", "pvfs", "ocfs", "gfs"),
)

_T = TypeVar("_T")


def open_slot(board: Board) -> Slot:
    """A slot on the board; in memory with a `problem` if the board is silent or cannot hold one."""
    try:
        return in_time(lambda: _open(board), Slot.close)
    except TimeoutError as error:
        return Slot.in_memory(f"board {board.path} {error}")


def _open(board: Board) -> Slot:
    kind = served_by(board.path)
    if kind:
        return Slot.in_memory(
            f"board {board.path} is on {kind}, whose server a native call would wait for; "
            "set WS_GUARD_BOARD to a directory in memory"
        )
    return Slot.on_board(board)


def served_by(path: str) -> str:
    """The type of a path's file system if somebody else serves it, else ""."""
    try:
        found = os.path.realpath(path)
        while not os.path.exists(found):
            found = os.path.dirname(found)
        device = os.stat(found).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            kinds = {
                line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == number
            }
    except (OSError, ValueError, IndexError):
        return ""  # whoever makes the slot will say why
    return next((kind for kind in sorted(kinds) if kind.startswith(_SERVED)), "")


def in_time(
    work: Callable[[], _T],
    give_back: Callable[[_T], object] = lambda _: None,
    seconds: float = PATIENCE_SECONDS,
) -> _T:
    """What `work` gives within `seconds`, else TimeoutError; what it gives later is given back."""
    job = _Job(work, give_back)
    # A daemon: what hangs in the kernel must not keep the process.
    thread = threading.Thread(target=job.run, name="ws_guard", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had, as while an interpreter ends
        return work()
    thread.join(seconds)
    return job.result(seconds)


class _Job(Generic[_T]):
    """Work whose answer is taken in time, or given back."""

    def __init__(self, work: Callable[[], _T], give_back: Callable[[_T], object]) -> None:
        self._work, self._give_back = work, give_back
        self._lock = threading.Lock()
        self._late = False
        self._answers: list[_T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            answer = self._work()
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
            return
        with self._lock:
            if not self._late:
                self._answers.append(answer)
                return
        self._give_back(answer)

    def result(self, seconds: float) -> _T:
        with self._lock:
            if self._answers:
                return self._answers[0]
            self._late = True
        if self._error is not None:
            raise self._error
        raise TimeoutError(f"did not answer within {seconds:g} s")
