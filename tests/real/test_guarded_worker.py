"""A worker that gets over an overflow, as the exporter tells it while it lives and afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from exporter_process import Exporter

if TYPE_CHECKING:
    from collections.abc import Iterator

DECODE = "trtllm_paged_attention_decode"
WORKER = """
import sys
sys.path.insert(0, {helpers!r})
import ws_guard
from ws_guard import launcher
ws_guard.install(board={board!r}, engine="0", rank=3)
from pathlib import Path
from flashinfer_calls import PUBLIC_CALLS, Shape, workspace
with launcher.on_cpu(Path({library!r})):
    buffer = workspace(394 << 20)
    for rows in (512, 12_288, 24):
        try:
            PUBLIC_CALLS["sparse_mla"].build(Shape(rows, 64, 1, True), buffer)()
            print(rows, "done", flush=True)
        except ws_guard.WorkspaceOverflowError as error:
            print(rows, "raised", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Workers that were started; whoever is left is killed."""
    workers: list[subprocess.Popen[str]] = []
    yield workers
    for process in workers:
        process.kill()
        process.communicate()


def worker(
    board: Path, library: Path, action: str, started: list[subprocess.Popen[str]]
) -> subprocess.Popen[str]:
    """A worker that has made its three steps, and waits."""
    helpers = str(Path(__file__).parent)
    script = WORKER.format(helpers=helpers, board=str(board), library=str(library))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "WS_GUARD_ON_OVERFLOW": action},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    assert process.stdout is not None
    outcome = {"raise": "raised", "split": "done"}[action]
    told = [process.stdout.readline().strip() for _ in range(3)]
    assert told == ["512 done", f"12288 {outcome}", "24 done"]
    return process


def wait_for(exporter: Exporter, name: str, value: float | None) -> None:
    deadline = time.monotonic() + 30
    while exporter.metrics().get(name) != value:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("action", "told"), [("raise", "raised"), ("split", "split")])
def test_what_it_got_over_is_a_warning(
    action: str,
    told: str,
    tmp_path: Path,
    native_library: Path,
    exporter: Exporter,
    started: list[subprocess.Popen[str]],
) -> None:
    process = worker(tmp_path / "board", native_library, action, started)
    calls = "ws_guard_native_calls_total"
    wait_for(exporter, calls, 3)

    metrics = exporter.metrics()
    assert metrics["ws_guard_worker_up"] == 1
    assert metrics["ws_guard_overflows_total"] == 1
    # One scrape agrees with itself: every eager call is in the histogram.
    assert metrics["ws_guard_batch_size_count"] == metrics[calls] == 3
    assert metrics["ws_guard_batch_size_sum"] == 512 + 12_288 + 24
    assert f'action="{told}"' in exporter.get("/metrics")[1]

    code, text = exporter.get("/readyz?verbose")
    assert code == 200, text
    health = json.loads(exporter.get("/health")[1])
    (check,) = (each for each in health["checks"] if each["name"] == "no_overflow")
    assert check == {
        "name": "no_overflow",
        "state": "warn",
        "detail": f"engine 0 rank 3: {DECODE}: overflow {told}, 1 call",
    }
    (seen,) = health["workers"]
    assert seen["info"]["on_overflow"] == action

    ring = json.loads(exporter.get("/api/v1/calls?engine=0&rank=3")[1])["calls"]
    assert [(call["batch"], call["outcome"]) for call in ring] == [
        (24, "eager"),
        (12_288, told),
        (512, "eager"),
    ]

    # A clean exit: nobody dies of a call that was split, but of one raised a moment ago one may.
    process.communicate("")
    assert process.returncode == 0
    stays = 1 if action == "raise" else 0
    assert len(list((tmp_path / "board").iterdir())) == stays
    wait_for(exporter, "ws_guard_worker_up", 0 if stays else None)
    (overflow, *rest) = exporter.stop()
    assert (overflow["event"], overflow["action"], overflow["batch"]) == ("overflow", told, 12_288)
    # 8 * 64 * 12,288 * 256 bytes and 1 MiB.
    assert overflow["slab_bytes"] == 1_611_661_312
    assert [event["event"] for event in rest] == ["death"] * stays
