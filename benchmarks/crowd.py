"""A board that is full of files which are no slots: `python -m benchmarks.crowd [--json]`.

An exporter as a process of its own over 8 busy workers, beside them nothing, then 10,000 files:
garbage, files cut short, links, pipes, and slots of another format. Milliseconds of /metrics and
/livez over HTTP, one request after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ws_guard.board import Board
from ws_guard.board.format import MAGIC, SLOT_BYTES, VERSION

from .scrape import busy_worker

WORKERS, REQUESTS = 8, 100
#: The exporter reads the board twice a second; the first reads of a new crowd are behind it then.
_SETTLE_SECONDS = 3.0
_SERVE = "import sys; from ws_guard.settings import require_settings; "
_SERVE += "from ws_guard.exporter.server import serve; sys.exit(serve(require_settings()))"


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


def milliseconds(url: str) -> list[float]:
    """How long each of the requests took, in order of length."""
    taken = []
    for _ in range(REQUESTS):
        start = time.perf_counter()
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own exporter
            answer.read()
        taken.append(1000 * (time.perf_counter() - start))
    return sorted(taken)


def run(files: int) -> dict[str, float]:
    """Figures for a board with so many files beside the workers'."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as home:
        folder = os.path.join(home, "board")
        slots = [busy_worker(Board(folder), rank) for rank in range(WORKERS)]
        make_crowd(folder, files)
        environ = {"WS_GUARD_BOARD": folder, "WS_GUARD_LISTEN": "127.0.0.1:0"}
        exporter = subprocess.Popen(  # noqa: S603 - this Python
            [sys.executable, "-c", _SERVE],
            env=os.environ | environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert exporter.stderr  # noqa: S101 - asked for above
            url = exporter.stderr.readline().split(" on ")[1].split(",")[0]
            time.sleep(_SETTLE_SECONDS)
            metrics, livez = milliseconds(f"{url}/metrics"), milliseconds(f"{url}/livez")
        finally:
            exporter.terminate()
            exporter.communicate()
        for slot in slots:
            slot.close()
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
