"""What these tests share: a log from lines, explained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "exporter"))

from formats import plain
from messages import NO_HUB

from ws_guard.explain.logs import explain_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    Explain = Callable[..., list[Finding]]


@pytest.fixture
def explain(tmp_path: Path) -> Explain:
    """`explain(lines, wrap=plain)`: the findings of a log."""

    def explain_lines(
        lines: list[str] | bytes, wrap: Callable[[list[str]], bytes] = plain
    ) -> list[Finding]:
        path = tmp_path / "engine.log"
        path.write_bytes(lines if isinstance(lines, bytes) else wrap(lines))
        return explain_log(str(path), NO_HUB)

    return explain_lines


@pytest.fixture
def explain_one(explain: Explain) -> Callable[..., Finding]:
    """The same, of a log with a single fault."""

    def one(*arguments: object) -> Finding:
        (finding,) = explain(*arguments)
        return finding

    return one
