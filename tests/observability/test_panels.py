"""The main panels, drawn by Grafana's own components in Chromium from a real Prometheus."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from places import panels
from play import DEMO, KILLED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from play import Played

pytestmark = [pytest.mark.observability, pytest.mark.timeout(600)]

_RANK = {"job": DEMO, "rank": "0"}
#: (dashboard, panel, what is chosen, while it was undersized or to the end, what it must say)
_DRAWN: tuple[tuple[str, str, dict[str, str], bool, list[str]], ...] = (
    # -1,743,781,888 of 413,138,944 bytes.
    ("fleet", "Least planned margin", {}, True, ["-422%"]),
    # All but the sized one's; of those that failed one has no workers at all.
    ("fleet", "Exporters not ready", {}, True, ["4"]),
    ("fleet", "Dead workers", {}, True, ["1"]),
    # The demonstration's eight, and the one that was killed.
    ("fleet", "Ranks with an overflow, 15 min", {}, True, ["9"]),
    ("fleet", "Ranks with an overrun, 15 min", {}, True, ["1"]),
    ("engine", "Need against size", _RANK, False, ["planned", "peak", "last", "ws0 size"]),
    ("fleet", "Least planned margin by deployment", {}, False, [DEMO, "end of the workspace"]),
)


def test_main_panels(
    played: Played,
    node: Callable[..., str],
    program: Callable[[str], str],
    artefacts: Path,
    tmp_path: Path,
) -> None:
    drawn = []
    for number, (name, title, chosen, early, _) in enumerate(_DRAWN):
        (panel,) = [panel for panel in panels(name) if panel["title"] == title]
        file = artefacts / f"panel-{number}.png"
        end = played.undersized if early else played.ended
        drawn.append({"panel": panel, "file": str(file), "variables": chosen, "end": end})
    job, sheet = tmp_path / "job.json", artefacts / "panels.png"
    server = {"prometheus": played.prometheus.url, "start": played.began}
    pictures = {"chromium": program("chromium"), "sheet": str(sheet), "panels": drawn}
    job.write_text(json.dumps(server | pictures))
    told = [json.loads(line) for line in node("panels.mjs", job).splitlines()]
    for one, (_, title, _, _, words) in zip(told, _DRAWN, strict=True):
        assert (one["title"], one["errors"]) == (title, [])
        assert one["names"]
        shown = one["text"].removeprefix(title)
        assert all(word in shown for word in words), one["text"]
        # Each line is there, in its colour; the successor's may be a point yet.
        lines = dict(zip(one["names"], one["inked"], strict=False))
        assert all(pixels > 50 for name, pixels in lines.items() if name != KILLED), one
    assert sheet.stat().st_size > 50_000
