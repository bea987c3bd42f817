"""In a pid namespace of its own: a worker dies and its pid comes round while the watch is stopped.

`pid_reuse.py BOARD` prints what the watch, an exporter's reading end in a process of its own, says
of the worker before and after.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from board_worker import Worker

from ws_guard.board import Board

#: Says after each look whether the one worker is alive.
WATCH = """
import sys, time
from ws_guard.board import Board
from ws_guard.exporter.snapshot import BoardWatch
watch = BoardWatch(Board(sys.argv[1]))
while True:
    (one,) = watch.read().slots
    print("alive" if one.worker.alive else "dead", flush=True)
    time.sleep(0.05)
"""
#: Looks after which a calm board is not read again.
CALM = 5
PATIENCE = 20.0


def stop(process: subprocess.Popen[str]) -> None:
    """Have a process do nothing, and return once it does."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def take(pid: int) -> subprocess.Popen[bytes]:
    """A process with this pid, which nobody has now."""
    while True:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "60"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()


def main(path: str) -> None:
    # The child of the worker has inherited its lock: from then on the pid alone decides.
    worker = Worker(Board(path), "fork")
    watch = subprocess.Popen([sys.executable, "-c", WATCH, path], stdout=subprocess.PIPE, text=True)
    assert watch.stdout is not None
    seen = [watch.stdout.readline().strip() for _ in range(CALM)]
    stop(watch)
    worker.kill()
    other = take(worker.process.pid)
    watch.send_signal(signal.SIGCONT)
    begun = time.monotonic()
    last = seen[-1]
    while last == "alive" and time.monotonic() - begun < PATIENCE:
        last = watch.stdout.readline().strip()
    print(seen[-1], last, flush=True)
    for process in (watch, other):
        process.kill()
        process.wait()
    watch.stdout.close()
    worker.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
