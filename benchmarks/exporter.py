"""What a running exporter takes: `python -m benchmarks.exporter [--json]`.

`ws-guard serve` runs as a process of its own over a board in memory, beside a bare FastAPI process;
`benchmarks.workers` stand for the workers. Idle means that no worker makes a call and nobody asks;
busy, that every worker makes a call between two reads of the board; with a third dead, that the
rest is idle after so many were killed. Processor time is the kernel's, of all threads, as a share
of one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable

from ws_guard.board import Board

from .processes import Process, exporter, running
from .workers import busy_workers, call_all

SETTLE_SECONDS = 3.0
IDLE_SECONDS = 30.0
BUSY_SECONDS = 10.0
REQUESTS = 20


def cpu_percent(process: Process, seconds: float, between: Callable[[], None]) -> float:
    """Share of a core, in percent, over so many seconds; `between` is called ten times a second."""
    start, spent = time.monotonic(), process.cpu_seconds()
    while time.monotonic() - start < seconds:
        time.sleep(0.1)
        between()
    return 100 * (process.cpu_seconds() - spent) / (time.monotonic() - start)


def slowest_ms(process: Process, path: str) -> float:
    """Milliseconds of the slowest of some requests."""
    return 1000 * max(process.get(path)[0] for _ in range(REQUESTS))


def bare() -> dict[str, float]:
    """A bare FastAPI process after as many requests."""
    with running("-m", "benchmarks.bare_server") as process:
        slowest_ms(process, "/livez")
        time.sleep(SETTLE_SECONDS)
        idle = cpu_percent(process, IDLE_SECONDS / 2, lambda: None)
        return {"memory_mb": process.memory_bytes() / 1e6, "idle_cpu_percent": idle}


def run(workers: int, bare_mb: float) -> dict[str, float]:
    """Figures of the exporter over so many workers."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as path,
        busy_workers(Board(path), workers) as slots,
        exporter(path) as process,
    ):
        answers = {
            "status_page_ms": slowest_ms(process, "/"),
            "metrics_ms": slowest_ms(process, "/metrics"),
            "readyz_ms": slowest_ms(process, "/readyz"),
        }
        lines = process.get("/metrics")[1].splitlines()
        mine = sum(b'engine="0",' in line and b'rank="0"' in line for line in lines)
        time.sleep(SETTLE_SECONDS)
        idle = cpu_percent(process, IDLE_SECONDS, lambda: None)
        memory = process.memory_bytes() / 1e6
        busy = cpu_percent(process, BUSY_SECONDS, lambda: call_all(slots))
        for slot in slots[: workers // 3]:
            slot.drop()  # as the kernel drops that of a killed worker
        time.sleep(SETTLE_SECONDS)
        third_dead = cpu_percent(process, IDLE_SECONDS, lambda: None)
    return {
        "workers": workers,
        "series_per_rank": mine,
        "idle_cpu_percent": idle,
        "idle_third_dead_percent": third_dead,
        "busy_cpu_percent": busy,
        "memory_mb": memory,
        "memory_over_bare_mb": memory - bare_mb,
        **answers,
    }


def main() -> None:
    """Print the figures for 8 and 72 workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    least = bare()
    results = [run(workers, least["memory_mb"]) for workers in (8, 72)]
    if as_json:
        print(json.dumps({"bare": least, "exporter": results}, indent=2))
        return
    print(f"bare FastAPI process: {least['memory_mb']:.1f} MB, {least['idle_cpu_percent']:.3f} %")
    print(f"{'':<24}" + "".join(f"{result['workers']:>10} workers" for result in results))
    for name in list(results[0])[1:]:
        print(f"{name:<24}" + "".join(f"{result[name]:>18,.3f}" for result in results))


if __name__ == "__main__":
    main()
