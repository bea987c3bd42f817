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

from ws_guard.board import Board, Outcome, Shape, Slot
from ws_guard.board.format import COUNT_EAGER, RING_RUNS
from ws_guard.exporter.collector import board_registry
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.planning import plan
from ws_guard.settings import read_settings
from ws_guard.sizing import OPS

ROUNDS = 15
SHAPES = 200
_WORKSPACE = 394 << 20
_PLAN = plan(
    heads=64, max_num_batched_tokens=1024, workspace_bytes=_WORKSPACE, flashinfer="0.6.14"
)._asdict()


class Bare(Collector):
    """Yields what it was given: the least that a scrape of as many series costs."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families


def busy_worker(board: Board, rank: int) -> Slot:
    """A slot with two ops, two workspaces that are planned, 200 shapes and a full ring."""
    slot = Slot.on_board(board)
    ops = list(OPS.values())
    workspaces = ["ws0", "ws1"]
    slot.describe(
        {
            "engine": "0",
            "rank": str(rank),
            "ops": ops,
            "workspaces": workspaces,
            "layout": "B",
            "contract": "verified",
            "planned": [{"workspace": w, **_PLAN} for w in workspaces],
        }
    )
    for number in range(SHAPES):
        shape = Shape(
            op=number % 2, workspace=number % 2, batch=1 + 16 * number, heads=64, q_len=1, lse=True,
            workspace_bytes=_WORKSPACE, address_mod_16=0, sm_count=148, qk=576, vo=512, top_k=2048,
            sum_q=None, counter_buffer_bytes=None, first_seen_ns=time.time_ns(),
        )  # fmt: skip
        _, word, _ = slot.add_row(shape, number)
        slot.words[word + COUNT_EAGER] += 1 + number
    for run in range(RING_RUNS):
        row = run % SHAPES
        slot.begin_run(row % 2, row, Outcome.EAGER)
    return slot


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
    with tempfile.TemporaryDirectory() as path:
        board = Board(path)
        slots = [busy_worker(board, rank) for rank in range(workers)]
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
        for slot in slots:
            slot.close()
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
