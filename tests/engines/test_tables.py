"""docs/ENGINES.md tells what the tables hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from ws_guard.engines.releases import ENGINES
from ws_guard.engines.sites import Engine
from ws_guard.engines.tables import releases_table, sites_table

DOCUMENT = Path(__file__).parents[2] / "docs" / "ENGINES.md"


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_the_document_holds_the_tables(engine: Engine) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert sites_table(engine) in text
    assert releases_table(engine) in text
    assert engine.env_note in text


def test_every_row_has_every_cell() -> None:
    lines = sites_table(ENGINES["vllm"]).splitlines()
    # 11 columns stand between 12 bars
    assert {line.count("|") for line in lines} == {12}
