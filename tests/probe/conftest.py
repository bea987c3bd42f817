"""What the tests of this directory share: a board, an op under a probe, and what the slots say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ws_guard
from ws_guard.board import Board, SlotView
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import LAYOUTS, OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meetings import Meetings
    from native_calls import Watched

    from ws_guard import Plan

# The helpers beside this file also run without pytest.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def flashinfer() -> Path:
    """The directory of the installed FlashInfer; the test is skipped where there is none."""
    found = importlib.util.find_spec("flashinfer")
    if found is None or found.origin is None:
        pytest.skip("flashinfer is not installed")
    return Path(found.origin).parent


@pytest.fixture
def board(tmp_path: Path) -> str:
    return str(tmp_path / "board")


@pytest.fixture(scope="session")
def plan() -> Plan:
    """The reported crash: 394 MiB do not hold its worst step."""
    return ws_guard.plan(
        heads=64, tp=8, dcp=8, max_num_batched_tokens=16_384, flashinfer="0.6.14", sm_count=148
    )


@pytest.fixture
def slots(board: str) -> Callable[[], list[SlotView]]:
    """`slots()`: every slot of the board now."""
    from slot_views import slots_of

    return lambda: slots_of(board)


@pytest.fixture
def slot(slots: Callable[[], list[SlotView]]) -> Callable[[], SlotView]:
    """`slot()`: the one slot of the board now."""

    def read() -> SlotView:
        (only,) = slots()
        return only

    return read


@pytest.fixture
def recorder_of(board: str) -> Iterator[Callable[[str], Recorder]]:
    """`recorder_of(layout)`: a recorder on the board; closed after the test."""
    made: list[Recorder] = []

    def make(layout: str) -> Recorder:
        recorder = Recorder(Board(board), LAYOUTS[layout], list(OPS.values()), {"engine": "0"})
        made.append(recorder)
        return recorder

    yield make
    for recorder in made:
        recorder.close(keep_evidence=False)


@pytest.fixture
def recorder(recorder_of: Callable[[str], Recorder]) -> Recorder:
    return recorder_of("B")


@pytest.fixture
def watched(recorder: Recorder) -> Watched:
    """A decode under a probe that observes."""
    from native_calls import watch  # brings torch

    return watch(recorder)


@pytest.fixture
def meet(board: str) -> Iterator[Callable[..., Meetings]]:
    """`meet(layout, action)`: the ledgers of a process; closed after the test."""
    from meetings import Meetings  # brings torch

    made: list[Meetings] = []

    def start(*how: str, **more: Any) -> Meetings:
        made.append(Meetings(board, *how, **more))
        return made[-1]

    yield start
    for each in made:
        each.close()
