"""Very many native calls: memory and slot stay as large as they are, and no call is lost.

Ten million with WS_GUARD_NIGHTLY=1 (`make nightly`), less otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ws_guard.board.format import SLOT_BYTES
from ws_guard.exporter.model import BATCH_BUCKETS
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.probe import hot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from ws_guard.board import Board

SCRIPT = Path(__file__).with_name("endurance.py")
NIGHTLY = os.environ.get("WS_GUARD_NIGHTLY") == "1"
CALLS = 10_000_000 if NIGHTLY else 300_000
THREADS = 8
#: One number kept of every call would take 28 bytes each: 8.4 MB at the least.
MOST_GROWN = 1 << 20


@pytest.fixture(params=["in C", "in Python"])
def path(request: pytest.FixtureRequest, unavailable: Callable[[str], NoReturn]) -> str:
    """The hot path, as an argument of the script."""
    if request.param == "in Python":
        return "python"
    if not hot.is_built():
        unavailable("the extension was not built: `python hatch_build.py` says why")
    return ""


@pytest.fixture
def run(board: Board, path: str) -> Iterator[Callable[[int], dict[str, Any]]]:
    """What a worker tells that has made its calls and still lives."""
    started: list[subprocess.Popen[str]] = []

    def start(threads: int) -> dict[str, Any]:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), board.path, str(CALLS), str(threads), path],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        told: dict[str, Any] = json.loads(process.stdout.readline())
        assert told["in_c"] == (path == "")
        return told

    yield start
    for process in started:
        process.kill()
        process.communicate()


def check_counts(board: Board, made: dict[str, int]) -> None:
    """The exporter's reading end tells what the worker's own account says, bucket by bucket."""
    (one,) = BoardWatch(board).read().slots
    (op,) = one.worker.ops
    buckets: Counter[int] = Counter()
    for batch, calls in made.items():
        buckets[bisect_left(BATCH_BUCKETS, int(batch))] += calls
    assert one.worker.alive
    assert op.calls == {"eager": sum(made.values())}
    assert {place: calls for place, calls in enumerate(op.batch_counts) if calls} == buckets
    assert op.batch_sum == sum(int(batch) * calls for batch, calls in made.items())
    assert (op.overflows, op.overruns, one.worker.probe_errors) == ({}, {}, 0)


@pytest.mark.timeout(3600)
def test_memory_and_slot_stay_as_they_are(
    board: Board, run: Callable[[int], dict[str, Any]]
) -> None:
    told = run(1)
    print(f"{told['calls']:,} calls, {told['memory']:,} bytes, {told['grown']:,} more")
    assert told["rows"], "the table of rows is full"
    assert told["calls"] >= CALLS
    assert told["grown"] < MOST_GROWN
    assert told["slot"] == SLOT_BYTES
    assert len(os.listdir(board.path)) == 1
    check_counts(board, told["made"])


@pytest.mark.timeout(3600)
def test_threads_lose_no_call(board: Board, run: Callable[[int], dict[str, Any]]) -> None:
    """Eight at once, in one op, changing as often as the interpreter lets them."""
    told = run(THREADS)
    print(f"{told['calls']:,} calls by {THREADS} threads")
    assert told["calls"] >= CALLS
    check_counts(board, told["made"])
