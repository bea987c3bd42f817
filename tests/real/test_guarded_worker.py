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
HERE = Path(__file__).parent
CALLS = "ws_guard_native_calls_total"


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
    process = subprocess.Popen(
        [sys.executable, HERE / "probed_worker.py", board, library, "512", "12288", "24"],
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


def counts_three_steps_and_one_overflow(exporter: Exporter, told: str) -> None:
    metrics = exporter.metrics()
    assert metrics["ws_guard_worker_up"] == 1
    assert metrics["ws_guard_overflows_total"] == 1
    # One scrape agrees with itself: every eager call is in the histogram.
    assert metrics["ws_guard_batch_size_count"] == metrics[CALLS] == 3
    assert metrics["ws_guard_batch_size_sum"] == 512 + 12_288 + 24
    assert f'action="{told}"' in exporter.get("/metrics")[1]
    ring = json.loads(exporter.get("/api/v1/calls?engine=0&rank=3")[1])["calls"]
    assert [(call["batch"], call["outcome"]) for call in ring] == [
        (24, "eager"),
        (12_288, told),
        (512, "eager"),
    ]


def is_ready_with_a_warning(exporter: Exporter, action: str, told: str) -> None:
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
    wait_for(exporter, CALLS, 3)
    counts_three_steps_and_one_overflow(exporter, told)
    is_ready_with_a_warning(exporter, action, told)
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
