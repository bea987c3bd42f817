"""A board with ten thousand files that are no slots, and two workers among them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.crowd import make_crowd

if TYPE_CHECKING:
    from conftest import Attach, Get

    from ws_guard.board import Board


FILES = 10_000


def test_ten_thousand_files_are_passed_over_and_counted(
    attach: Attach, get: Get, board: Board
) -> None:
    attach(rank="0", planned=[]).call(5)
    attach(rank="1", planned=[]).call(5)
    make_crowd(board.path, FILES)
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(2):  # they count once, however often they are met
        text = get("/metrics").text
        assert f"ws_guard_board_read_errors_total {FILES}.0\n" in text.replace(",", "")
        for rank in (0, 1):
            assert f'ws_guard_worker_up{{engine="0",rank="{rank}"}} 1.0\n' in text
    assert len(os.listdir("/proc/self/fd")) == descriptors
    health = get("/health")
    assert health.status_code == 200
    detail = health.json()["checks"][0]["detail"]
    assert detail.startswith("10,000 files on the board passed over: it has format version 2")
    assert len(health.content) < 10_000, "the reasons, and not each file"
