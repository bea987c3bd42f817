"""What these tests share: a stage with a board and an exporter, made once for each process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The helpers beside this file, and those that make logs, slots and a FlashInfer stand-in.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "exporter"))
sys.path.insert(2, str(Path(__file__).parents[1] / "explain"))
sys.path.insert(3, str(Path(__file__).parents[1] / "run"))

from doors import make_pair
from stage import Stage, fill_board

from ws_guard.exporter.server import Exporter
from ws_guard.settings import require_settings

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The reported crash on a board, an exporter over it, and a tree to run commands in."""
    home = tmp_path_factory.mktemp("documents")
    board = home / "board"
    living = fill_board(board)
    told = {"WS_GUARD_BOARD": str(board), "WS_GUARD_LISTEN": "127.0.0.1:0"}
    exporter = Exporter(require_settings(told))
    exporter.start()
    made = Stage(home, exporter.url)
    make_pair(made.directory, "exporter")
    yield made
    exporter.stop()
    living.close()
