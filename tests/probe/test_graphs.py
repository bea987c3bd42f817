"""Captures and replays, by torch's own Python; the stages are in `graph_scenarios`."""

from __future__ import annotations

import flashinfer_needed  # noqa: F401 - skips this file without it
import graph_scenarios
import pytest


@pytest.mark.parametrize("name", graph_scenarios.SCENARIOS)
def test_scenario(name: str) -> None:
    graph_scenarios.run(name)
