"""Captures and replays as torch 2.14.1 tells of them: its real `register_graph_..._hook` functions.

The Python of `torch.cuda.graphs` is torch's own; what it asks of CUDA is answered by
`tests/probe/graph_stage.py`, for there is no GPU. The scenarios are those of the patched graphs.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[3]
HELPERS = ROOT / "tests" / "probe"


@pytest.fixture(scope="module")
def told(environment: Path) -> dict[str, Any]:
    """What `graph_scenarios.py` prints in the environment of the engines."""
    done = subprocess.run(
        [str(environment / "bin" / "python"), str(HELPERS / "graph_scenarios.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(HELPERS)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_scenario_holds_by_torchs_hooks(told: dict[str, Any]) -> None:
    release = [int(part) for part in told["torch"].split("+")[0].split(".")]
    assert release >= [2, 14]
    assert told["has_hooks"]
    assert len(told["outcomes"]) >= 24
    assert {name: text for name, text in told["outcomes"].items() if text} == {}
