"""What these tests share: a board, and whoever reads it as the exporter does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

HERE = Path(__file__).parent
# The helpers beside this file also run as scripts.
sys.path.insert(0, str(HERE))

from ws_guard.board import Board  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def unavailable() -> Callable[[str], NoReturn]:
    """Skips with the reason; fails where the real thing has to be there."""

    def say(reason: str) -> NoReturn:
        if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
            pytest.fail(f"WS_GUARD_REQUIRE_REAL=1, but {reason}", pytrace=False)
        pytest.skip(reason)

    return say


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """A private board that nobody has made yet."""
    return Board(str(tmp_path / "board"))
