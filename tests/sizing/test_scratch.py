"""Scratch against figures measured from FlashInfer's kernel selection, 0.6.14 and 0.6.15.post1."""

from __future__ import annotations

import pytest

from ws_guard.sizing import LAYOUTS, Call, HeadDims, Scratch, scratch
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
    ("heads", "batch", "top_k", "size"),
    # 148 SMs: statistics 148 * step_q * 8, output CTAs * split * step_q * 512 values of 2 bytes.
    # KV is split into ceil(top_k / 256) parts where a KV step is 128 tokens: the most it can be.
    [
        # One row of 16 heads: two CTAs of 8, as 16 tiles of 128 tokens are at most 148 // 8 = 18
        (16, 1, 2048, 148 * 8 * 8 + 2 * 8 * 8 * 1024),
        (32, 1, 2048, 148 * 16 * 8 + 2 * 8 * 16 * 1024),
        (16, 1, 2304, 148 * 8 * 8 + 2 * 9 * 8 * 1024),
        # 19 tiles: one CTA of 16, and 10 parts
        (16, 1, 2305, 148 * 16 * 8 + 1 * 10 * 16 * 1024),
        (16, 2, 2048, 148 * 16 * 8 + 2 * 8 * 16 * 1024),
        # 4 rows of 5 tiles each are 20, though 4 * 514 tokens would fit into 17
        (16, 4, 514, 148 * 16 * 8 + 4 * 3 * 16 * 1024),
        # No kernel has less than 8 rows
        (8, 1, 2048, 148 * 8 * 8 + 1 * 8 * 8 * 1024),
        # Tiles of 64 rows: two for 128 heads, whether or not they are a pair
        (128, 9, 2048, 148 * 64 * 8 + 18 * 8 * 64 * 1024),
        (128, 10, 2048, 148 * 64 * 8 + 20 * 7 * 64 * 1024),
        # 64 parts for each of 2 rows
        (64, 2, 16_384, 148 * 64 * 8 + 2 * 64 * 64 * 1024),
        # A single row leaves a quarter of the 148 SMs to its KV: 37 parts
        (64, 1, 16_384, 148 * 64 * 8 + 1 * 37 * 64 * 1024),
        # Twice 2 * 64 CTAs are too many: half of what is left after two tiles of heads, 37 again
        (128, 1, 16_384, 148 * 64 * 8 + 2 * 37 * 64 * 1024),
    ],
)
def test_sparse_mla_of_few_rows(heads: int, batch: int, top_k: int, size: int) -> None:
    """repr as well: bytes are whole numbers."""
    call = Call("decode", heads, batch, dims=HeadDims(576, 512, top_k))
    assert repr(scratch(call, C)) == repr(Scratch(size, False))


def test_a_single_row_is_spread_only_where_its_keys_are_576_wide() -> None:
    call = Call("decode", 64, 1, dims=HeadDims(512, 512, 16_384))
    assert scratch(call, C).bytes == 148 * 64 * 8 + 64 * 64 * 1024
    # 128 SMs hold twice 64 CTAs exactly: a quarter of them are left, 32
    exactly = call._replace(sm_count=128, dims=HeadDims(576, 512, 16_384))
    assert scratch(exactly, C).bytes == 128 * 64 * 8 + 32 * 64 * 1024


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
@pytest.mark.parametrize("entry", ["decode", "dsv4"])
def test_bounds(entry: str, sm_count: int, dims: HeadDims | None, bound: int) -> None:
    call = Call(entry, 64, 1, sm_count=sm_count, dims=dims)
    assert scratch(call, C) == (bound, False)
    assert scratch(call._replace(batch=0), C) == (0, True)


@pytest.mark.parametrize(
    ("changes", "bound"),
    # Any kernel of MLA, 148 * 64 * (8 + 2 * vo), where the one that is selected is not known
    [
        ({"q_len": 2}, 9_775_104),
        ({"heads": 24}, 9_775_104),
        ({"dims": HeadDims(320, 256, top_k=2048)}, 148 * 64 * (8 + 2 * 256)),
    ],
)
def test_sparse_mla_whose_kernel_is_not_known(changes: dict[str, object], bound: int) -> None:
    call = Call("decode", 64, 16, dims=SPARSE_MLA)._replace(**changes)
    assert scratch(call, C) == (bound, False)


@pytest.mark.parametrize("entry", ["context", "ragged"])
def test_context_and_ragged_use_none(entry: str) -> None:
    assert scratch(Call(entry, 64, 1), C) == (0, True)


@pytest.mark.parametrize("sm_count", [132, 148, 149, 160])
def test_no_scratch_above_half_the_sms(sm_count: int) -> None:
    assert may_use_scratch(Call("decode", 8, sm_count // 2, sm_count=sm_count))
    assert not may_use_scratch(Call("decode", 8, sm_count // 2 + 1, sm_count=sm_count))
