"""Pieces of a real decode step against the whole: XQA stands for trtllm-gen, which needs SM100."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xqa_decode import Decode, buffer

from ws_guard.probe.split import near_equal

if TYPE_CHECKING:
    import torch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("xqa_card")]


def largest_ulps(one: torch.Tensor, other: torch.Tensor) -> int:
    """The largest difference of two bf16 tensors, in units in the last place."""
    import torch

    def ordered(tensor: torch.Tensor) -> torch.Tensor:
        bits = tensor.view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return int((ordered(one) - ordered(other)).abs().max())


@pytest.mark.parametrize("batch", [64, 256, 1024])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_pieces_make_what_the_whole_makes(batch: int, count: int) -> None:
    step, workspace = Decode(batch, 2048), buffer()
    whole = step.run(workspace).clone()
    step.out.zero_()
    start = 0
    for rows in near_equal(batch, count):
        step.run(workspace, slice(start, start + rows))
        start += rows
    ulps = largest_ulps(whole, step.out)
    print(f"batch {batch} in {count} pieces: largest difference {ulps} bf16 ulps")
    # 64 rows x 8 KV heads are more than half the SMs: no piece of them splits its KV down to 16
    # rows, and so none sums in another order.
    assert ulps == 0
