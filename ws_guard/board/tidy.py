"""What a starting worker clears from the board: what its dead predecessors left there."""

from __future__ import annotations

import contextlib
import os
import stat
import time

from . import liveness
from .directory import HIDDEN, READING, SUFFIX, Board
from .reader import SlotError, SlotReader

#: A live worker's slot is in the making, and not locked yet, for milliseconds.
LEFTOVER_SECONDS = 60.0


def remove_dead(board: Board, engine: str, rank: str, keep: str | None) -> list[str]:
    """Remove dead slots of this (engine, rank), and slots that never got finished; their names.

    Only files of this user go. `keep` is the path of the caller's own slot: call this once that
    one is described, so that the worker is never missing from the board. Raises nothing.
    """
    removed: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        directory = board.open()
        try:
            for name in sorted(os.listdir(directory)):
                if keep is not None and name == os.path.basename(keep):
                    continue
                # Another worker may be quicker, and a file may not be what its name says.
                with contextlib.suppress(OSError, SlotError):
                    if _may_go(name, board, directory, (engine, rank)):
                        os.unlink(name, dir_fd=directory)
                        removed.append(name)
        finally:
            os.close(directory)
    return removed


def _may_go(name: str, board: Board, directory: int, identity: tuple[str, str]) -> bool:
    """A name holds pid, time and serial, and is never used again: what was dead is not reborn."""
    if not name.endswith(SUFFIX):
        return False
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return False
    if name.startswith(HIDDEN):
        age = time.time() - found.st_mtime
        return age > LEFTOVER_SECONDS and not _is_locked(name, directory)
    slot = SlotReader(name).read(board, directory)
    if slot.alive:
        return False
    told = slot.document
    # One that died before it said who it was is of no use to anybody.
    return not told or (told.get("engine"), told.get("rank")) == identity


def _is_locked(name: str, directory: int) -> bool:
    fd = os.open(name, READING, dir_fd=directory)
    try:
        return liveness.is_locked(fd)
    finally:
        os.close(fd)
