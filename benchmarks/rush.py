"""500 probe requests at any time, for a minute: `python -m benchmarks.rush [--json]`.

/readyz of `ws-guard serve` over a board whose workers make calls, and the one route of a bare
FastAPI process, both asked by the same 500 clients, in turn and round after round: with a
connection kept by each, then with one for each request, as kubelets have. All clients ask again as
soon as they are answered, so both servers always work as fast as they can; `clients_cpu_percent` is
the share of a core that the clients take. Memory and open files are those after the first ten
seconds and after the sixtieth. Exits with 1 where a request failed, or our p99 is more than three
times the other.

Then 100 clients scrape /metrics of as many workers without a pause, and /livez is asked beside
them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ws_guard.board import Board, Slot
from ws_guard.board.format import RING_RUNS

from .clients import Crowd, Tally
from .processes import Process, exporter, running
from .workers import busy_workers, call_all

CLIENTS, ROUNDS, ROUND_SECONDS = 500, 6, 10.0
MOST_RATIO = 3.0
SCRAPERS, SCRAPE_SECONDS = 100, 20.0
_SETTLE_SECONDS = 1.0


class Figures(NamedTuple):
    """What one server did under the rush."""

    requests: int
    errors: dict[str, int]
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    clients_cpu_percent: float
    memory_mb_first_round: float
    memory_mb_last_round: float
    open_files_first_round: int
    open_files_last_round: int


class Result(NamedTuple):
    """Both servers under the same rush."""

    workers: int
    connections: str
    bare: Figures
    ours: Figures
    p99_vs_bare: float


class Asked:
    """A server under the rush: its route, what was answered, and what it holds after each round."""

    def __init__(self, process: Process, path: str) -> None:
        self._process = process
        self._path = path
        self._tally = Tally()
        self._memory: list[int] = []
        self._files: list[int] = []

    def rush(self, slots: list[Slot], *, fresh: bool) -> None:
        """One round; the workers make their calls whichever server it is against."""
        crowd = Crowd(self._process.port, self._path, b"ok\n", CLIENTS, fresh=fresh)
        self._tally.add(crowd.ask(ROUND_SECONDS, lambda: call_all(slots)))
        time.sleep(_SETTLE_SECONDS)
        self._memory.append(self._process.memory_bytes())
        self._files.append(self._process.open_files())

    def figures(self) -> Figures:
        """All rounds so far."""
        tally = self._tally
        return Figures(
            requests=len(tally.latencies),
            errors=dict(tally.errors),
            requests_per_s=len(tally.latencies) / tally.seconds,
            p50_ms=1000 * tally.quantile(0.5),
            p99_ms=1000 * tally.quantile(0.99),
            worst_ms=1000 * tally.quantile(1.0),
            clients_cpu_percent=100 * tally.cpu_seconds / tally.seconds,
            memory_mb_first_round=self._memory[0] / 1e6,
            memory_mb_last_round=self._memory[-1] / 1e6,
            open_files_first_round=self._files[0],
            open_files_last_round=self._files[-1],
        )


def run(workers: int, *, fresh: bool) -> Result:
    """Figures of one kind of connection over a board of so many workers."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as path,
        busy_workers(Board(path), workers) as slots,
    ):
        for _ in range(RING_RUNS):  # what is kept of their last calls grows no more
            call_all(slots)
        with exporter(path) as our_process, running("-m", "benchmarks.bare_server") as bare_process:
            bare, ours = Asked(bare_process, "/livez"), Asked(our_process, "/readyz")
            for _ in range(ROUNDS):
                for asked in (bare, ours):
                    asked.rush(slots, fresh=fresh)
    least, figures = bare.figures(), ours.figures()
    connections = "fresh" if fresh else "kept"
    return Result(workers, connections, least, figures, figures.p99_ms / least.p99_ms)


class Flood(NamedTuple):
    """/livez while many scrape: milliseconds."""

    workers: int
    scrapes: int
    errors: dict[str, int]
    livez_p50_ms: float
    livez_worst_ms: float


def flood(workers: int) -> Flood:
    """Scrapes without a pause, and /livez ten times a second."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as path,
        busy_workers(Board(path), workers) as slots,
        exporter(path) as process,
        ThreadPoolExecutor() as pool,
    ):
        crowd = Crowd(process.port, "/metrics", None, SCRAPERS, fresh=True)
        scraped = pool.submit(crowd.ask, SCRAPE_SECONDS, lambda: call_all(slots))
        taken = []
        while not scraped.done():
            time.sleep(0.1)
            taken.append(1000 * process.get("/livez")[0])
        tally = scraped.result()
    taken.sort()
    middle = taken[len(taken) // 2]
    return Flood(workers, len(tally.latencies), dict(tally.errors), middle, taken[-1])


def _print(result: Result) -> None:
    print(f"{result.workers} workers, connections {result.connections:<8}{'bare':>14}{'ours':>14}")
    for name, bare, ours in zip(Figures._fields, result.bare, result.ours, strict=True):
        told = [f"{each:,.1f}" if isinstance(each, float) else each for each in (bare, ours)]
        print(f"  {name:<30}{told[0]!s:>14}{told[1]!s:>14}")
    print(f"  {'p99_vs_bare':<44}{result.p99_vs_bare:>14.2f}", flush=True)


def _holds(result: Result) -> bool:
    errors = result.bare.errors or result.ours.errors
    return not errors and result.p99_vs_bare <= MOST_RATIO


def main() -> None:
    """Print the figures; exit 1 where they do not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 72])
    told = parser.parse_args()
    results = []
    for workers in told.workers:
        for fresh in (False, True):
            results.append(run(workers, fresh=fresh))
            if not told.json:
                _print(results[-1])
    floods = [flood(workers) for workers in told.workers]
    if told.json:
        trees = {"rush": [_tree(result) for result in results]}
        print(json.dumps(trees | {"flood": [each._asdict() for each in floods]}, indent=2))
    else:
        print(*floods, sep="\n")
    sys.exit(0 if all(map(_holds, results)) else 1)


def _tree(result: Result) -> dict[str, object]:
    return result._asdict() | {
        "bare": result.bare._asdict(),
        "ours": result.ours._asdict(),
    }


if __name__ == "__main__":
    main()
