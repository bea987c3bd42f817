"""What the tests on a real card share: they say why they are skipped where there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

import ws_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ws_guard import Probe

# The helpers beside this file also run without pytest, as programs.
sys.path.insert(0, str(Path(__file__).parent))


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; fail where a card has to be there."""
    if os.environ.get("WS_GUARD_REQUIRE_GPU") == "1":
        pytest.fail(f"WS_GUARD_REQUIRE_GPU=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def xqa_card() -> None:
    """A card on which FlashInfer runs XQA."""
    from card import missing

    if reason := missing():
        unavailable(reason)
    import torch

    capability = torch.cuda.get_device_capability()
    if capability[0] not in (9, 12):
        unavailable(f"FlashInfer decodes by XQA on SM90 and SM120, this is SM{capability}")


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return tmp_path / "board"


@pytest.fixture
def probe_after(board: Path) -> Iterator[Callable[[], Probe]]:
    """`probe_after()`: a probe on the board, installed once the settings are made."""
    made: list[Probe] = []

    def install() -> Probe:
        made.append(ws_guard.install(board=str(board)))
        return made[0]

    yield install
    for probe in made:
        probe.uninstall()


@pytest.fixture
def probe(probe_after: Callable[[], Probe]) -> Probe:
    return probe_after()
