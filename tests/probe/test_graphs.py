"""Captures and replays, by torch's own Python; the stages are in `graph_scenarios`."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("flashinfer") is None:
    pytest.skip("flashinfer is not installed", allow_module_level=True)

import graph_scenarios


@pytest.mark.parametrize("name", graph_scenarios.SCENARIOS)
def test_scenario(name: str) -> None:
    graph_scenarios.run(name)
