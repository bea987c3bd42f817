"""Cost of a scrape: `python -m benchmarks.scrape [--json]`.

Our collector over a board of busy workers against a bare prometheus_client Collector that yields
the same families and samples, both rendered in one process, round after round.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from ws_guard.board import Board
from ws_guard.exporter.collector import board_registry
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.settings import read_settings

from .workers import busy_workers

ROUNDS = 15


class Bare(Collector):
    """Yields what it was given: the least that a scrape of as many series costs."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families


def fastest(functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of each, the fastest of interleaved rounds."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], 1000 * (time.perf_counter() - start))
    return best


def run(workers: int) -> dict[str, float]:
    """Figures for a board of so many workers."""
    with tempfile.TemporaryDirectory() as path, busy_workers(board := Board(path), workers):
        watch = BoardWatch(board)
        snapshot = watch.read()
        ours = board_registry(lambda: snapshot, read_settings({})[0])
        bare = CollectorRegistry()
        families = list(ours.collect())
        bare.register(Bare(families))
        best = fastest(
            {
                "ours_ms": lambda: generate_latest(ours),
                "bare_ms": lambda: generate_latest(bare),
                "board_read_ms": watch.read,
            }
        )
    series = sum(len(family.samples) for family in families)
    ratio = best["ours_ms"] / best["bare_ms"]
    return {"workers": workers, "series": series, **best, "ours_vs_bare": ratio}


def main() -> None:
    """Print the figures for 8 and 72 workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    results = [run(workers) for workers in (8, 72)]
    if as_json:
        print(json.dumps(results, indent=2))
        return
    print("".join(f"{name:>16}" for name in results[0]))
    for result in results:
        print("".join(f"{value:>16,.4g}" for value in result.values()))


if __name__ == "__main__":
    main()
