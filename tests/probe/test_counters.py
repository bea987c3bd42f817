"""Whether the head of a workspace is zero, on memory of the CPU."""

from __future__ import annotations

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch

from ws_guard.probe.counters import CounterCheck
from ws_guard.probe.ticker import Ticker

LENGTH = 4096


@pytest.fixture
def check() -> CounterCheck:
    return CounterCheck(Ticker(3600, print))


def dirty(check: CounterCheck, workspace: torch.Tensor) -> int:
    """How often it was found dirty."""
    found: list[int] = []
    check.check(workspace, LENGTH, lambda: found.append(1))
    return len(found)


def test_zero_is_clean(check: CounterCheck) -> None:
    assert dirty(check, torch.zeros(2 * LENGTH, dtype=torch.uint8)) == 0


@pytest.mark.parametrize(
    ("at", "found"), [(0, 1), (1, 1), (LENGTH - 1, 1), (LENGTH, 0), (2 * LENGTH - 1, 0)]
)
def test_a_byte_within_the_length_is_found(check: CounterCheck, at: int, found: int) -> None:
    workspace = torch.zeros(2 * LENGTH, dtype=torch.uint8)
    workspace[at] = 128
    assert dirty(check, workspace) == found


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float64])
def test_the_length_is_in_bytes_whatever_the_type(check: CounterCheck, dtype: torch.dtype) -> None:
    workspace = torch.zeros(2 * LENGTH, dtype=dtype)
    per_element = workspace.element_size()
    workspace[LENGTH // per_element] = 1
    assert dirty(check, workspace) == 0
    workspace[LENGTH // per_element - 1] = 1
    assert dirty(check, workspace) == 1


def test_nothing_is_read_behind_a_short_buffer(check: CounterCheck) -> None:
    memory = torch.zeros(2 * LENGTH, dtype=torch.uint8)
    memory[LENGTH // 2 :] = 1
    assert dirty(check, memory[: LENGTH // 2]) == 0


def test_a_meta_tensor_has_no_memory_to_look_at(check: CounterCheck) -> None:
    assert dirty(check, torch.empty(2 * LENGTH, dtype=torch.uint8, device="meta")) == 0
