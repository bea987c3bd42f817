"""Keeps a snapshot fresh in a thread of its own: an answer never waits for the file system."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from ws_guard.board import open_board
from ws_guard.settings import Settings

from .events import EventLog
from .snapshot import BoardWatch, Snapshot

REFRESH_SECONDS = 0.75
#: A board that could not be read for so long counts as unreadable.
STALE_SECONDS = 5.0


class Refresher:
    """Reads a board every `interval` seconds and tells the event log what happened there."""

    def __init__(
        self,
        watch: BoardWatch,
        log: EventLog,
        interval: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log = log
        self._watch = watch
        self._interval = interval
        self._clock = clock
        self._snapshot = Snapshot()
        self._read_at = clock()
        self._first_read = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def working(self) -> bool:
        """Whether the thread still goes round; a read that hangs does not end it."""
        return self._thread is None or self._thread.is_alive()

    def latest(self) -> Snapshot:
        """The last read; it has a `fault` if there was no read for too long."""
        snapshot, age = self._snapshot, self._clock() - self._read_at
        if age <= STALE_SECONDS or snapshot.fault:
            return snapshot
        return replace(snapshot, fault=f"the last good read is {age:.0f} s old")

    def refresh(self) -> Snapshot:
        """Read the board now, in this thread."""
        before, snapshot = self._snapshot, self._watch.read()
        self._snapshot, self._read_at = snapshot, self._clock()
        if snapshot.slots is not before.slots:
            self.log.note(snapshot)
        self._first_read.set()
        return snapshot

    def start(self, first_read_seconds: float = 1.0) -> None:
        """Start the thread and wait for its first read, but not for ever."""
        if self._thread is not None:
            return
        self._stopping.clear()
        self.log.start()
        # A daemon: a read that hangs in the kernel must not keep the process.
        self._thread = threading.Thread(target=self._run, name="ws-guard-board", daemon=True)
        self._thread.start()
        self._first_read.wait(first_read_seconds)

    def stop(self, wait_seconds: float = 1.0) -> None:
        """End the thread."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join(wait_seconds)
            self._thread = None
            self.log.stop()

    def _run(self) -> None:
        while not self._stopping.is_set():
            snapshot = self.refresh()
            # A very large board is read half of the time at most.
            self._stopping.wait(max(self._interval, snapshot.read_seconds))


def board_refresher(settings: Settings, log: EventLog | None = None) -> Refresher:
    """A refresher over the board of the settings. `BoardError` where its group does not exist."""
    board = open_board(settings.board, settings.board_group, settings.trusted_uids)
    return Refresher(BoardWatch(board), log or EventLog())
