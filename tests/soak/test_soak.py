"""The soak in short: the same processes, programs and books. `make nightly` takes an hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WORKERS = 5
COMMAND = (
    *(sys.executable, str(HERE / "soak.py"), "--workers", str(WORKERS), "--rate", "2000"),
    *("--seconds", "10", "--kill-every", "1", "--group-every", "5"),
)


@pytest.mark.usefixtures("equipped")
def test_everybody_tells_what_the_workers_say_they_made(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = subprocess.run(
        [*COMMAND, "--json", str(out)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert out.exists(), done.stderr
    report = json.loads(out.read_text())
    assert report["problems"] == [], f"seed {report['seed']}"
    ran = report["calls_eager"] + report["calls_replayed"]
    told = report["calls_told_by_prometheus"]
    assert 0 < ran <= told <= ran + report["calls_in_doubt"]
    # In the end all of them exit in good order; before that some made room for a next life.
    assert report["ends"]["exit"] >= WORKERS
    assert report["lives"] == sum(report["ends"].values()) > WORKERS
    assert report["calls_replayed"] > 0
    assert report["histograms_checked"] > report["instants_checked"] > 0
