"""A worker killed at its first refused call, as the exporter tells it afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from exporter_process import Exporter

HERE = Path(__file__).parent


def test_a_worker_killed_at_its_first_refused_call(
    tmp_path: Path, native_library: Path, exporter: Exporter
) -> None:
    command = [sys.executable, HERE / "probed_worker.py", tmp_path / "board", native_library]
    done = subprocess.run([*command, "512", "3080", "3081"], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while exporter.metrics().get("ws_guard_worker_up") != 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    metrics = exporter.metrics()
    assert metrics["ws_guard_overflows_total"] == 1
    assert metrics["ws_guard_native_calls_total"] == 3
    assert not [name for name in metrics if name.endswith(("_bytes", "_batch"))]

    code, text = exporter.get("/readyz?verbose")
    assert code == 503
    assert "[-]workers_alive failed: engine 0 rank 3" in text
    assert "[-]no_overflow failed: engine 0 rank 3" in text
    assert exporter.get("/livez")[0] == 200

    calls = json.loads(exporter.get("/api/v1/calls?engine=0&rank=3")[1])["calls"]
    assert [(call["batch"], call["outcome"]) for call in calls] == [
        (3081, "overflow"),
        (3080, "eager"),
        (512, "eager"),
    ]
    events = {event["event"]: event for event in exporter.stop()}
    assert set(events) == {"overflow", "death"}
    # FlashInfer's own numbers for 3,081 rows in 394 MiB.
    assert events["overflow"]["slab_bytes"] == 404_881_408
    assert events["overflow"]["available_bytes"] == 404_750_336
