"""Scratch of XQA, the decode kernels that FlashInfer runs where trtllm-gen has none.

FlashInfer's Python slices the workspace: 8 MiB of semaphores, the rest scratch (`decode.py`,
`mla/_core.py`). Nobody checks either. A kernel that spreads one sequence's KV over several CTAs
writes every CTA's statistics, then every CTA's output, and counts the CTAs of a sequence in a
semaphore of 4 bytes; one CTA per sequence uses neither. Read from, and the same in, FlashInfer
0.6.14, 0.6.15.post1 and 0.7.4 (`csrc/xqa/`):

`mha.cu`, every GPU (`launchMHAFlashInfer`, `kernel_mha_impl`):
    split  = min(max(1, sm_count / (batch * kv_heads)), ceil(max_kv_len / 256))
    rows   = heads / kv_heads, or 32 with several query tokens
    blocks = ceil(q_len * heads / kv_heads / 32) with several query tokens, else 1
    parts  = split * kv_heads * blocks * batch
    statistics: two of 128 bytes for each 32 rows;  output: rows * head_dim (64 << n) * 2 bytes

`mha_sm90.cu`, an FP8 KV cache on Hopper (`launchHopperF8MHAFlashInfer`, `ScratchMem`):
    split  = min(max(1, round(sm_count * 3 / (batch * kv_heads) / 4)), ceil(max_kv_len / 64))
    rows   = q_len * heads / kv_heads where that is at most 32 or q_len is 1, else 64
    statistics: 8 bytes a row;  output: rows * head_dim * 2 bytes

In both the outputs begin at a multiple of their own size. Every CTA of `mha.cu` writes, so that its
scratch is exact; one of `mha_sm90.cu` writes only if its sequence is long enough, so that is the
most it can be. Splits end at batch * kv_heads = sm_count / 2: the semaphores in use are always few.

`mla_sm120.cu` (`launchMLAFlashInfer`) never splits, and passes tiles between the CTAs of a cluster
through scratch at every batch: two a row, of 128 heads * (64 bytes + two floats).
"""

from __future__ import annotations

from itertools import product

from .call import Call
from .slabs import Scratch, ceil_div, round_up

_KV_TILE, _KV_TILE_SM90 = 256, 64
_SPEC_ROWS, _SPEC_ROWS_SM90, _SWAPPED_ROWS_SM90 = 32, 64, 32
_PADDED_HEAD_DIMS = (64, 128, 256, 512)
_OUTPUT_ELEMENT_BYTES = 2
# `persistentQ`: the query tile of a CTA, or the module does not compile.
_QUERY_TILE_BYTES = 16 << 10
_MLA_ROW_BYTES = 2 * 128 * (64 + 2 * 4)


def xqa_scratch(call: Call) -> Scratch:
    """Scratch bytes that XQA writes for `call`; what is not known of it is taken at its worst."""
    if call.batch < 1:
        return Scratch(0, True)
    if call.entry == "xqa_mla":
        return Scratch(call.batch * _MLA_ROW_BYTES, False)
    kv_heads = _possible_kv_heads(call) if call.kv_heads is None else [call.kv_heads]
    head_dims = _PADDED_HEAD_DIMS if call.dims is None else [call.dims.qk]
    possible = list(product(kv_heads, head_dims))
    if len(possible) > 1:
        possible = [each for each in possible if _compiles(call, *each)]
    most = max((_most_of_kernels(call, *each) for each in possible), default=0)
    return Scratch(most, most == 0 or _is_exact(call))


def may_use_xqa_scratch(call: Call) -> bool:
    """Whether an XQA kernel can split the KV of `call`, however long, over several CTAs."""
    if call.entry == "xqa_mla":
        return call.batch > 0
    return 0 < call.batch * (call.kv_heads or 1) <= call.sm_count // 2


def _is_exact(call: Call) -> bool:
    known = call.kv_heads is not None and call.dims is not None and call.max_kv_len is not None
    # A ragged query's request without a token writes nothing.
    uniform = call.q_len == 1 or call.sum_q in (None, call.batch * call.q_len)
    return known and uniform and call.sm90_fp8 is False


def _possible_kv_heads(call: Call) -> list[int]:
    """Those with which KV may be split: more leave no SM idle."""
    most = min(call.heads, call.sm_count // (2 * call.batch))
    return [kv for kv in range(1, most + 1) if call.heads % kv == 0]


def _compiles(call: Call, kv_heads: int, head_dim: int) -> bool:
    rows = _SPEC_ROWS if call.q_len > 1 else call.heads // kv_heads
    tile = _OUTPUT_ELEMENT_BYTES * _padded(head_dim) * round_up(rows, 16)
    return tile <= _QUERY_TILE_BYTES


def _most_of_kernels(call: Call, kv_heads: int, head_dim: int) -> int:
    sizes = []
    if call.sm90_fp8 is not True:
        sizes.append(_generic(call, kv_heads, head_dim))
    if call.sm90_fp8 is not False:
        sizes.append(_sm90(call, kv_heads, head_dim))
    return max(sizes)


def _generic(call: Call, kv_heads: int, head_dim: int) -> int:
    group = call.heads // kv_heads
    split = _split(call.sm_count // (call.batch * kv_heads), call, _KV_TILE)
    if split <= 1:
        return 0
    rows, blocks = group, 1
    if call.q_len > 1:
        rows, blocks = _SPEC_ROWS, ceil_div(call.q_len * group, _SPEC_ROWS)
    statistics = 2 * 128 * ceil_div(round_up(rows, 16), 32)
    return _segments(split * kv_heads * blocks * call.batch, statistics, rows, _padded(head_dim))


def _sm90(call: Call, kv_heads: int, head_dim: int) -> int:
    group = call.heads // kv_heads
    # A quarter of it, halves rounded up, as the source does it in floats.
    quarter = (call.sm_count * 3 // (call.batch * kv_heads) + 2) // 4
    split = _split(quarter, call, _KV_TILE_SM90)
    if split <= 1:
        return 0
    rows, blocks = call.q_len * group, 1
    if call.q_len > 1 and rows > _SWAPPED_ROWS_SM90:
        rows, blocks = _SPEC_ROWS_SM90, ceil_div(call.q_len, max(1, _SPEC_ROWS_SM90 // group))
    return _segments(split * kv_heads * blocks * call.batch, 8 * rows, rows, head_dim)


def _split(wanted: int, call: Call, kv_tile: int) -> int:
    """CTAs that share a sequence."""
    if call.max_kv_len is None:
        return max(1, wanted)
    return min(max(1, wanted), ceil_div(call.max_kv_len, kv_tile))


def _segments(parts: int, statistics: int, rows: int, head_dim: int) -> int:
    output = rows * head_dim * _OUTPUT_ELEMENT_BYTES
    return round_up(parts * statistics, output) + parts * output


def _padded(head_dim: int) -> int:
    return next((dim for dim in _PADDED_HEAD_DIMS if head_dim <= dim), head_dim)
