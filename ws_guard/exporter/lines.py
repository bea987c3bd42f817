"""Lines on a stream that perhaps nobody reads: whoever tells them waits for no one."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import datetime, timezone
from typing import TextIO

#: A burst of many ranks at once fits; beyond that, lines are dropped and counted.
MOST_WAITING = 10_000
_RETRIES, _RETRY_SECONDS = 50, 0.1


class LineWriter:
    """Writes lines from a thread of its own between `start` and `stop`, else at once."""

    def __init__(self, stream: TextIO | None = None, most_waiting: int = MOST_WAITING) -> None:
        self._stream = stream
        self._most_waiting = most_waiting
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._ending = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, line: str) -> None:
        """Write a line, now or soon; drop it where too many wait already."""
        with self._news:
            queued = self._thread is not None
            if queued and len(self._waiting) >= self._most_waiting:
                self._dropped += 1
            elif queued:
                self._waiting.append(line)
                self._news.notify()
        if not queued:
            self._write(line)

    def start(self) -> None:
        """Start the thread; one that is still stuck in its last line goes on instead."""
        with self._news:
            self._ending = False
            if self._thread is not None:
                return
            # A daemon: a pipe that nobody reads must not keep the process.
            self._thread = threading.Thread(target=self._run, name="ws-guard-log", daemon=True)
            self._thread.start()

    def stop(self, wait_seconds: float = 1.0) -> None:
        """Write what waits and end the thread, but do not wait for ever."""
        with self._news:
            thread, self._ending = self._thread, True
            self._news.notify()
        if thread is not None:
            thread.join(wait_seconds)

    def _run(self) -> None:
        while (line := self._next()) is not None:
            self._write(line)

    def _next(self) -> str | None:
        """The next line, waited for; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._dropped or self._ending)
            if self._waiting:
                return self._waiting.popleft()
            if not self._dropped:
                # A thread that is stuck never comes here: it stays in charge of what waits.
                self._thread = None
                return None
            dropped, self._dropped = self._dropped, 0
        moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        return json.dumps({"event": "lines_dropped", "time": moment, "count": dropped})

    def _write(self, line: str) -> None:
        stream = self._stream or sys.stderr
        # A log that nobody can read any more must not stop the exporter.
        with suppress(OSError, ValueError):
            if (descriptor := _descriptor(stream)) is not None:
                _write_all(descriptor, f"{line}\n".encode())
            elif stream is not None:
                print(line, file=stream, flush=True)


def _descriptor(stream: TextIO | None) -> int | None:
    with suppress(AttributeError, OSError, ValueError):
        return stream.fileno() if stream is not None else None
    return None


def _write_all(descriptor: int, data: bytes) -> None:
    """Past the stream's buffer: a thread stuck there holds its lock, and Python dies of it."""
    for _ in range(_RETRIES):
        with suppress(BlockingIOError):  # somebody made it non-blocking
            while data:
                data = data[os.write(descriptor, data) :]
            return
        time.sleep(_RETRY_SECONDS)
