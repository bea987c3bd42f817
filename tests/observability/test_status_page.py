"""The status page in Chromium: at 1, 8 and 72 ranks, in both themes, on a desk and on a phone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from places import ROOT
from servers import exporter

from ws_guard.board import Board

sys.path.insert(0, str(ROOT / "tests" / "exporter"))
from slot_worker import CRASH_PLAN, FIXED_PLAN, SlotWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.observability

_SITE = "sparse_mla"
_NAMES = {"workspaces": [_SITE], "expected_workers": 1}
_FIXED = [FIXED_PLAN | {"workspace": _SITE}]
_CRASH = [CRASH_PLAN | {"workspace": _SITE}]
_FIXED_BYTES = FIXED_PLAN["workspace_bytes"]
_THEMES = {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 20, 24)"}
_WIDTHS = {"desk": 1280, "phone": 390}


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(str(tmp_path / "board"))


@pytest.fixture
def ranks(board: Board) -> Iterator[Callable[[int], str]]:
    """`ranks(count)`: that many live workers of which one is the worst; returns who that is."""
    workers: list[SlotWorker] = []

    def attach(count: int) -> str:
        for rank in range(count):
            workers.append(SlotWorker(board, rank=str(rank), planned=_FIXED, **_NAMES))
            workers[-1].call(1_000 + 200 * rank, workspace_bytes=_FIXED_BYTES)
        worst = count // 2
        workers[worst].describe(planned=_CRASH)
        workers[worst].overflow(12_288)
        return f"0 / {worst}"

    yield attach
    for worker in workers:
        worker.close()


@pytest.mark.parametrize("count", [1, 8, 72])
def test_page(
    count: int,
    ranks: Callable[[int], str],
    board: Board,
    node: Callable[..., str],
    program: Callable[[str], str],
    artefacts: Path,
    tmp_path: Path,
) -> None:
    worst = ranks(count)
    views = [
        {"file": str(artefacts / f"page-{count}-{where}-{theme}.png"), "theme": theme, "width": w}
        for theme in _THEMES
        for where, w in _WIDTHS.items()
    ]
    job = tmp_path / "job.json"
    with exporter(Path(board.path), WS_GUARD_EXPECTED_WORKERS=str(count)) as address:
        url = f"http://{address}/"
        job.write_text(json.dumps({"url": url, "chromium": program("chromium"), "views": views}))
        told = [json.loads(line) for line in node("page.mjs", job).splitlines()]
    for view, seen in zip(views, told, strict=True):
        where = view["file"]
        assert len(seen["rows"]) == count
        assert seen["rows"][0].startswith(worst), where
        assert "overflowed" in seen["rows"][0]
        assert seen["ground"] == _THEMES[str(view["theme"])]
        assert seen["overflows"] == [], where
        assert seen["serious"] == [], where
        assert (seen["outside"], seen["complaints"]) == ([], []), where
        # The keyboard reaches the table, which scrolls, and every link.
        assert seen["focused"][:6] == [
            "region",
            "metrics",
            "health",
            "readyz?verbose",
            "api/v1/workers",
            "openapi.json",
        ]
        # What an on-call engineer needs is there without scrolling.
        if view["width"] == _WIDTHS["desk"]:
            assert seen["first"]["y"] + seen["first"]["height"] < 900, where
            assert seen["sideways"] <= 0, where


def test_it_follows_the_board_by_itself(
    ranks: Callable[[int], str],
    board: Board,
    scripts: Path,
    program: Callable[[str], str],
) -> None:
    assert ranks(3) == "0 / 1"
    with exporter(Path(board.path)) as address:
        watching = subprocess.Popen(
            [
                program("node"),
                str(scripts / "refresh.mjs"),
                f"http://{address}/",
                program("chromium"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        assert watching.stdout.readline() == "0 / 1\n"
        dead = SlotWorker(board, rank="9", **_NAMES)
        dead.die()
        rest, _ = watching.communicate(timeout=120)
    assert (rest, watching.returncode) == ("0 / 9 Not ready · ws_guard\n", 0)
