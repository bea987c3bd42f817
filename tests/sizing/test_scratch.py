"""Scratch against figures measured from FlashInfer's kernel selection, 0.6.14 and 0.6.15.post1."""

from __future__ import annotations

import pytest

from ws_guard.sizing import LAYOUTS, Call, HeadDims, scratch
from ws_guard.sizing.scratch import may_use_scratch

C = LAYOUTS["C"]
SPARSE_MLA = HeadDims(576, 512, top_k=2048)


@pytest.mark.parametrize(
    ("heads", "last_batch", "size"),
    [(16, 74, 2_443_776), (32, 74, 4_887_552), (64, 74, 9_775_104), (128, 37, 9_775_104)],
)
def test_sparse_mla_up_to_the_last_batch_that_uses_it(
    heads: int, last_batch: int, size: int
) -> None:
    call = Call("decode", heads, last_batch, lse=True, dims=SPARSE_MLA)
    assert scratch(call, C) == (size, True)
    assert scratch(call._replace(batch=last_batch + 1), C) == (0, True)


def test_half_empty_grid_uses_less_than_the_bound() -> None:
    # batch 32: 148 // 32 = 4 CTAs a row, 128 in all: 148*64*8 + 128*64*512*2 = 8,464,384
    assert scratch(Call("decode", 64, 32, dims=SPARSE_MLA), C) == (8_464_384, True)


def test_small_batches_are_bounded_where_the_kernels_kv_step_is_not_known() -> None:
    # batch 16: 4 or 8 CTAs a row; with 8, 148*64*8 + 128*64*512*2 again
    assert scratch(Call("decode", 64, 16, dims=SPARSE_MLA), C) == (8_464_384, False)


@pytest.mark.parametrize(
    ("sm_count", "dims", "bound"),
    [
        (148, HeadDims(576, 512), 9_775_104),
        (148, None, 9_850_880),
        (152, None, 10_117_120),
        (160, None, 10_649_600),
        (148, HeadDims(128, 128), 148 * 128 * (8 + 2 * 128)),
    ],
)
def test_bounds(sm_count: int, dims: HeadDims | None, bound: int) -> None:
    call = Call("decode", 64, 1, sm_count=sm_count, dims=dims)
    assert scratch(call, C) == (bound, False)


@pytest.mark.parametrize("entry", ["context", "ragged"])
def test_context_and_ragged_use_none(entry: str) -> None:
    assert scratch(Call(entry, 64, 1), C) == (0, True)  # type: ignore[arg-type]


@pytest.mark.parametrize("sm_count", [132, 148, 149, 160])
def test_no_scratch_above_half_the_sms(sm_count: int) -> None:
    assert may_use_scratch(Call("decode", 8, sm_count // 2, sm_count=sm_count))
    assert not may_use_scratch(Call("decode", 8, sm_count // 2 + 1, sm_count=sm_count))
