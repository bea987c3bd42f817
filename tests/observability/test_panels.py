"""The main panels, drawn by Grafana's own components in Chromium from a real Prometheus."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from play import DEMO
from test_dashboards import panels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from play import Played

pytestmark = [pytest.mark.observability, pytest.mark.timeout(600)]

_RANK = {"job": DEMO, "rank": "0"}
#: (dashboard, panel, file, what is chosen, what it must say)
_DRAWN = (
    ("engine", "Need against size", "need", _RANK, ["0/0 ws0 planned", "0/0 ws0 peak", "ws0 size"]),
    ("fleet", "Least planned margin by deployment", "margin", {}, [DEMO, "end of the workspace"]),
    # In the end the least planned margin is that of the sized rank: 394 MiB of 8.4 GiB.
    ("fleet", "Least planned margin", "least", {}, ["4.59%"]),
)


def test_main_panels(
    played: Played,
    node: Callable[..., str],
    program: Callable[[str], str],
    artefacts: Path,
    tmp_path: Path,
) -> None:
    drawn = []
    for name, title, file, chosen, _ in _DRAWN:
        (panel,) = [panel for panel in panels(name) if panel["title"] == title]
        drawn.append(
            {"panel": panel, "file": str(artefacts / f"panel-{file}.png"), "variables": chosen}
        )
    job = tmp_path / "job.json"
    moments = {"start": played.began, "end": played.ended}
    server = {"prometheus": played.prometheus.url, "chromium": program("chromium")}
    job.write_text(json.dumps({**server, **moments, "panels": drawn}))
    told = [json.loads(line) for line in node("panels.mjs", job).splitlines()]
    for one, (_, title, file, _, words) in zip(told, _DRAWN, strict=True):
        assert (one["title"], one["errors"]) == (title, [])
        assert one["names"]
        assert all(word in one["text"] for word in words), one["text"]
        # Each line is there, in its colour.
        assert all(pixels > 100 for pixels in one["inked"]), one
        assert (artefacts / f"panel-{file}.png").stat().st_size > 5_000
