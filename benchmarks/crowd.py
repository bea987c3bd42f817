"""A board that is full of files which are no slots: `python -m benchmarks.crowd [--json]`.

An exporter as a process of its own over 8 busy workers, beside them nothing, then 10,000 files:
garbage, files cut short, links, pipes, and slots of another format. Milliseconds of /metrics and
/livez over HTTP, one request after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ws_guard.board import Board
from ws_guard.board.format import MAGIC, SLOT_BYTES, VERSION

from .processes import Process, exporter
from .workers import busy_workers

WORKERS, REQUESTS = 8, 100
#: The first reads of a new crowd are over then.
_SETTLE_SECONDS = 3.0


def make_crowd(folder: str, count: int) -> None:
    """So many files that are no slots, of seven kinds in turn."""
    newer = b"".join(word.to_bytes(8, "little") for word in (MAGIC, VERSION + 1, SLOT_BYTES))
    outside = Path(folder).with_name("outside")
    outside.touch()
    kinds: list[Callable[[Path], object]] = [
        lambda path: path.write_bytes(os.urandom(8192)),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(newer + bytes(8192)),
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.hardlink_to(outside),
        lambda path: os.mkfifo(path),
        lambda path: path.with_suffix(".txt").write_bytes(b"mine"),
    ]
    for number in range(count):
        kinds[number % len(kinds)](Path(folder, f"{number}.slot"))


def milliseconds(process: Process, path: str) -> list[float]:
    """How long each of the requests took, in order of length."""
    return sorted(1000 * process.get(path)[0] for _ in range(REQUESTS))


def run(files: int) -> dict[str, float]:
    """Figures for a board with so many files beside the workers'."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as home:
        folder = os.path.join(home, "board")
        with busy_workers(Board(folder), WORKERS):
            make_crowd(folder, files)
            with exporter(folder) as process:
                time.sleep(_SETTLE_SECONDS)
                metrics, livez = (milliseconds(process, path) for path in ("/metrics", "/livez"))
    return {
        "files": files,
        "metrics_median_ms": metrics[len(metrics) // 2],
        "metrics_worst_ms": metrics[-1],
        "livez_median_ms": livez[len(livez) // 2],
        "livez_worst_ms": livez[-1],
    }


def main() -> None:
    """Print the figures without a crowd, and with 10,000 files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    results = [run(files) for files in (0, 10_000)]
    if as_json:
        print(json.dumps(results, indent=2))
        return
    print("".join(f"{name:>20}" for name in results[0]))
    for result in results:
        print("".join(f"{value:>20,.4g}" for value in result.values()))


if __name__ == "__main__":
    main()
