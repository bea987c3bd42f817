"""Files that are replaced while we serve: a certificate and its key, a list of users."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from .lines import LineWriter

_T = TypeVar("_T")
_Marks: TypeAlias = tuple[tuple[int, ...], ...]

LOOK_SECONDS = 1.0


class Looking(Protocol):
    """What the thread asks again and again."""

    def look(self) -> str:
        """A line to tell, or nothing."""


class Renewal(Generic[_T]):
    """What was made of some files; made anew when they change, kept when they are broken.

    `load` raises ValueError for files that will not do, with a line that names them.
    """

    def __init__(self, what: str, paths: Sequence[str], load: Callable[[], _T]) -> None:
        self._what = what
        self._paths = paths
        self._load = load
        self._seen = self._settling = self._marks()
        self._told = ""
        self.value = load()

    def look(self) -> str:
        """Take in what changed; a line about it, or nothing where nobody need be told."""
        marks = self._marks()
        settled, self._settling = marks == self._settling, marks
        # Certificate and key may be replaced one after the other: they are taken once they rest.
        if marks == self._seen or not settled:
            return ""
        try:
            value = self._load()
        except ValueError as error:
            if self._marks() != marks:
                return ""
            self._seen = marks
            return self._tell_once(f"ws-guard: {error}; {self._what} from before stays in use")
        self.value, self._seen, self._told = value, marks, ""
        return f"ws-guard: {self._what} was renewed"

    def _tell_once(self, line: str) -> str:
        news, self._told = line != self._told, line
        return line if news else ""

    def _marks(self) -> _Marks:
        return tuple(map(_mark, self._paths))


def _mark(path: str) -> tuple[int, ...]:
    """What differs once a file, or what a link leads to, was replaced or written."""
    try:
        found = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class RenewalThread:
    """Looks at files in a thread of its own: an answer never waits for the file system."""

    def __init__(self, renewals: Sequence[Looking], interval: float = LOOK_SECONDS) -> None:
        self._renewals = renewals
        self._interval = interval
        # It never fails: this thread must outlive whoever reads the log.
        self._lines = LineWriter()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, where there is anything to look at."""
        if self._renewals and self._thread is None:
            self._stopping.clear()
            # A daemon: a file system that hangs must not keep the process.
            self._thread = threading.Thread(target=self._run, name="ws-guard-renewal", daemon=True)
            self._thread.start()

    def stop(self, wait_seconds: float = 1.0) -> None:
        """End the thread."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join(wait_seconds)
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            for line in filter(None, (renewal.look() for renewal in self._renewals)):
                self._lines.put(line)
