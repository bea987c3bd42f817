"""What the processes of the soak weigh, looked at every few seconds by the kernel's books."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Weight(NamedTuple):
    """A process at a moment: seconds of the monotonic clock, resident bytes, open descriptors."""

    at: float
    memory: int
    descriptors: int


def weigh(pid: int) -> Weight | None:
    """A process now; None where it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return Weight(time.monotonic(), _PAGE_BYTES * pages, len(os.listdir(f"/proc/{pid}/fd")))
    except (OSError, IndexError):
        return None


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


class Scales:
    """Weighs processes until stopped. `pids` gives those there are now, by name."""

    def __init__(self, pids: Callable[[], dict[str, int]], every: float) -> None:
        self.weights: dict[str, list[Weight]] = {}
        #: The machine's load average, in which whatever else runs there counts.
        self.loads: list[float] = []
        self._pids, self._every = pids, every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Scales:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            self.loads.append(os.getloadavg()[0])
            for name, pid in self._pids().items():
                found = weigh(pid)
                if found is not None:
                    self.weights.setdefault(name, []).append(found)

    def after(self, name: str, seconds: float) -> list[Weight]:
        """What a process weighed from so many seconds after its first weighing on; at least the
        last weight."""
        weights = self.weights[name]
        return [each for each in weights if each.at >= weights[0].at + seconds] or weights[-1:]
