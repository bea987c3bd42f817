"""A guard zone on memory of the CPU: what is written into it shows, byte for byte of its words."""

from __future__ import annotations

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch

from ws_guard.probe.zone import LINE_BYTES, Zone, paint

WORDS = 4 * LINE_BYTES // 8


@pytest.fixture
def memory() -> torch.Tensor:
    return torch.zeros(WORDS, dtype=torch.int64)


@pytest.fixture
def zone(memory: torch.Tensor) -> Zone:
    return paint(memory)


def test_it_is_painted_and_not_looked_at_yet(zone: Zone, memory: torch.Tensor) -> None:
    assert zone.answer() == (0, 0)
    assert len(memory.unique()) == 1
    # No byte of the pattern is one that kernels are likely to write.
    assert not set(memory[:1].view(torch.uint8).tolist()) & {0, 255}


def test_a_whole_zone_answers_with_the_number_of_the_look(zone: Zone) -> None:
    for number in (1, 2, 3):
        zone.look()
        assert zone.answer() == (number, 0)
    assert zone.answer() == (3, 0)


@pytest.mark.parametrize(
    ("start", "end", "words"), [(0, 1, 1), (7, 9, 2), (8, 16, 1), (8 * WORDS - 1, 8 * WORDS, 1)]
)
def test_destroyed_words_are_counted(
    zone: Zone, memory: torch.Tensor, start: int, end: int, words: int
) -> None:
    memory.view(torch.uint8)[start:end] = 0
    zone.look()
    assert zone.answer() == (1, 8 * words)


def test_what_is_repainted_is_whole_again(zone: Zone, memory: torch.Tensor) -> None:
    memory.zero_()
    zone.look()
    assert zone.answer() == (1, 8 * WORDS)
    zone.repaint()
    zone.look()
    assert zone.answer() == (2, 0)
    memory[3] = 0
    zone.look()
    assert zone.answer() == (3, 8)
