"""Readers of a board that never pause, and the process that forks what they read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from served import ENVIRON, Exporter

from ws_guard.board import Board
from ws_guard.exporter.events import EventLog
from ws_guard.exporter.refresh import Refresher
from ws_guard.exporter.snapshot import BoardWatch, Snapshot

if TYPE_CHECKING:
    from autopsy import Account

SCRIPT = Path(__file__).with_name("mortal.py")
_SAMPLE = re.compile(r"^(ws_guard_\w+)(?:\{(.*)\})? (\S+)$")


class Forks:
    """A process that begins lives by forks, which costs a millisecond each."""

    def __init__(self, board: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(board)],
            env=ENVIRON,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def begin(self, kind: str, rank: int, account: str) -> int:
        """The pid of a new life."""
        return self._ask(f"{kind} {rank} {account}")

    def end_of(self, pid: int) -> int:
        """How one has ended, once it has: its exit code, or a signal as a negative number."""
        return self._ask(str(pid))

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


class Reader:
    """Reads again and again in a thread of its own; `problems` is what it should not have met."""

    pause = 0.0

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.deaths: Counter[int] = Counter()
        self.reads = self.late = 0
        self._counts: dict[tuple[object, ...], float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def has_seen_death_of(self, pid: int) -> bool:
        assert not self.problems, self.problems
        return self.deaths[pid] > 0

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read()
                self.reads += 1
            except Exception:  # noqa: BLE001 - the test tells it
                self.problems.append(traceback.format_exc())
            self._stopping.wait(self.pause)

    def _read(self) -> None:
        raise NotImplementedError

    def _must_grow(self, key: tuple[object, ...], count: float) -> None:
        if count < self._counts.get(key, 0):
            self.problems.append(f"{key} fell from {self._counts[key]} to {count}")
        self._counts[key] = count

    def _died(self, line: str) -> None:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "death":
            self.deaths[event["pid"]] += 1


class SnapshotReader(Reader):
    """The exporter's reading end in this process, beside what the lives know themselves."""

    pause = 0.02

    def __init__(self, board: Path) -> None:
        super().__init__()
        stream: Any = self
        self._refresher = Refresher(BoardWatch(Board(str(board))), EventLog(stream))
        self._lives: dict[int, Account] = {}
        self._lock = threading.Lock()
        self._thread.start()

    # The stream of the event log.

    def write(self, text: str) -> None:
        for line in text.splitlines():
            self._died(line)

    def flush(self) -> None:
        pass

    def follow(self, pid: int, account: Account) -> None:
        with self._lock:
            self._lives[pid] = account

    def unfollow(self, pid: int) -> None:
        with self._lock:
            del self._lives[pid]

    def _read(self) -> None:
        with self._lock:
            before = {pid: (one.slots, one.made(one.slots)) for pid, one in self._lives.items()}
            snapshot = self._refresher.refresh()
            self._check(snapshot, before)

    def _check(self, snapshot: Snapshot, before: dict[int, tuple[int, int]]) -> None:
        if snapshot.fault or snapshot.unreadable or snapshot.read_errors:
            self.problems.append(f"{snapshot.fault} {snapshot.unreadable} {snapshot.read_errors}")
        for one in snapshot.slots:
            worker = one.worker
            calls = sum(sum(op.calls.values()) for op in worker.ops)
            buckets = sum(sum(op.batch_counts) for op in worker.ops)
            overflows = sum(sum(op.overflows.values()) for op in worker.ops)
            self._must_grow((one.slot, "calls"), calls)
            self._must_grow((one.slot, "overflows"), overflows)
            if not buckets == calls >= overflows:
                self.problems.append(f"{one.slot}: {buckets} {calls} {overflows}")
            if worker.probe_errors:
                self.problems.append(f"{one.slot}: {worker.probe_errors} errors of the probe")
            account = self._lives.get(worker.pid)
            if account is not None:
                number = int(one.slot.split(".")[2])
                slot, made = before[worker.pid]
                least = made if slot == number else 0
                if not least <= calls <= account.begun(number):
                    told = f"{least} <= {calls} <= {account.begun(number)}"
                    self.problems.append(f"{one.slot}: {told} does not hold")


class HttpReader(Reader):
    """`ws-guard serve`, asked for its metrics and its readiness."""

    pause = 0.05

    def __init__(self, board: Path) -> None:
        super().__init__()
        self._exporter = Exporter(board)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._thread.start()

    def _listen(self) -> None:
        assert self._exporter.process.stderr is not None
        for line in self._exporter.process.stderr:
            if line.startswith("{"):
                self._died(line)
            else:
                self.problems.append(f"on standard error: {line}")

    def _read(self) -> None:
        code, text = self._exporter.get("/metrics")
        if code == 503 and "the last good read is" in text:
            self.late += 1  # a machine that others have to themselves: no time is asserted
            return
        if code != 200:
            self.problems.append(f"/metrics answered {code}: {text}")
        found = [match.groups() for match in map(_SAMPLE.match, text.splitlines()) if match]
        started = {
            labels: value for name, labels, value in found if "worker_start_timestamp" in name
        }
        for name, labels, value in found:
            if name == "ws_guard_board_read_errors_total" and float(value):
                self.problems.append(f"{value} errors of the exporter")
            if name.endswith("_total") and labels and 'rank="' in labels:
                worker = ",".join(
                    each for each in labels.split(",") if each.startswith(("engine=", "rank="))
                )
                self._must_grow((started[worker], name, labels), float(value))
        code, _ = self._exporter.get("/health")
        if code not in (200, 503):
            self.problems.append(f"/health answered {code}")

    def stop(self) -> None:
        super().stop()
        process = self._exporter.process
        process.terminate()
        process.wait()
        self._listener.join()
        assert process.stderr is not None
        process.stderr.close()
        if process.returncode:
            self.problems.append(f"the exporter ended with {process.returncode}")
