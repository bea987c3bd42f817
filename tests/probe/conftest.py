"""What the tests of this directory share: an op under a probe, and its board."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ws_guard.board import Board, SlotReader, SlotView, list_slots
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import LAYOUTS, OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from native_calls import Watched

# The helper beside this file also runs without pytest.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def board(tmp_path: Path) -> str:
    return str(tmp_path / "board")


@pytest.fixture
def slots(board: str) -> Callable[[], list[SlotView]]:
    """`slots()`: every slot of the board now."""

    def read() -> list[SlotView]:
        fd = os.open(board, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return [SlotReader(name).read(Board(board), fd) for name in list_slots(fd)[0]]
        finally:
            os.close(fd)

    return read


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
