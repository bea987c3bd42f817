"""What is captured, replayed and counted. Each scenario holds for patched and for hooked graphs.

Runs without pytest too: `python graph_scenarios.py` prints as JSON what became of each.
"""

from __future__ import annotations

import json
import traceback

import capture_scenarios  # noqa: F401 - adds its scenarios
import replay_scenarios  # noqa: F401 - adds its scenarios
import torch
from graph_stage import has_hooks
from scenarios import SCENARIOS, run


def outcome_of(name: str) -> str:
    """ "" where a scenario held, else the traceback."""
    try:
        run(name)
    except Exception:  # noqa: BLE001 - told to whoever asked
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    told = {"torch": torch.__version__, "has_hooks": has_hooks()}
    print(json.dumps(told | {"outcomes": {name: outcome_of(name) for name in SCENARIOS}}))
