"""Real processes under measurement: started, asked over loopback, weighed by the kernel's books."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_START_SECONDS = 30.0
_WHERE = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Process(NamedTuple):
    """A server that answers on a port of loopback."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far, exact to the nanosecond."""
        spent = [path.read_text().split()[0] for path in self._tasks("schedstat")]
        return sum(map(int, spent)) / 1e9

    def memory_bytes(self) -> int:
        """Resident memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        """Descriptors that it holds, its connections among them."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def get(self, path: str) -> tuple[float, bytes]:
        """(seconds from connecting to the last byte, body) of an answer of 200 or 503."""
        start = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status not in (200, 503):
            raise RuntimeError(f"{path} answered {answer.status}")
        return time.perf_counter() - start, body

    def _tasks(self, file: str) -> list[Path]:
        return list(Path(f"/proc/{self.pid}/task").glob(f"*/{file}"))


@contextlib.contextmanager
def running(*argv: str, **environment: str) -> Iterator[Process]:
    """A Python process with these arguments; it says on stderr where it listens."""
    child = subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, *argv],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield _answering(child)
    finally:
        child.terminate()
        child.wait()
        if child.stderr is not None:
            child.stderr.close()


def exporter(board: str) -> contextlib.AbstractContextManager[Process]:
    """`ws-guard serve` over a board, as users run it."""
    listen = "127.0.0.1:0"
    return running("-m", "ws_guard", "serve", "--board", board, WS_GUARD_LISTEN=listen)


def _answering(child: subprocess.Popen[str]) -> Process:
    assert child.stderr is not None  # noqa: S101 - it is a pipe
    told = child.stderr.readline()
    where = _WHERE.search(told)
    if where is None:
        raise RuntimeError(f"the process did not say where it listens: {told.strip()}")
    process = Process(child.pid, int(where[1]))
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            process.get("/livez")
            return process
        time.sleep(0.05)
    raise RuntimeError("the process does not answer")
