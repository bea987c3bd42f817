"""A thread for what the probe looks at off the hot path; there is none while there is no work."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

#: Does its work; returns whether it wants to be called again.
Job = Callable[[], bool]


class Ticker:
    """Calls jobs every `interval` seconds from a daemon thread."""

    def __init__(self, interval: float, stumbled: Callable[[object], None]) -> None:
        self._interval = interval
        self._stumbled = stumbled
        self._lock = threading.Lock()
        self._jobs: list[Job] = []
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def add(self, job: Job) -> None:
        """Call `job` from the next tick on, until it returns False."""
        with self._lock:
            self._jobs.append(job)
            if self._thread is None:
                # An interpreter that ends kills its daemon threads, in the middle of C++ if need
                # be, and that would end the process by an abort.
                atexit.register(self.stop)
                self._stopping = threading.Event()
                thread = threading.Thread(target=self._run, name="ws_guard", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """End the thread, and wait until it has."""
        atexit.unregister(self.stop)
        with self._lock:
            thread, self._thread = self._thread, None
            self._jobs.clear()
            self._stopping.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def forget(self) -> None:
        """In a forked child, which has no threads: the parent's work stays the parent's."""
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._jobs, self._thread = [], None

    def _run(self) -> None:
        stopping = self._stopping
        while not stopping.wait(self._interval):
            for job in list(self._jobs):
                if not self._again(job):
                    self._remove(job)
            with self._lock:
                if not self._jobs and not stopping.is_set():
                    self._thread = None
                    return

    def _again(self, job: Job) -> bool:
        try:
            return job()
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            self._stumbled(error)
            return False

    def _remove(self, job: Job) -> None:
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)
