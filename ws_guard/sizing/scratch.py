"""Scratch: the slab that takes what is left, and that nobody checks.

A generation kernel that spreads one sequence's KV over several CTAs (multi-CTA-KV) reduces their
partial results through it. Per CTA it writes `stepQ` rows of statistics and of output:

    sm_count * stepQ * 8  +  CTAs * stepQ * headDimPerCtaV * (2 if 2-CTA MMA else 1) * 2   bytes

Source: `fmhaKernels.cuh` and `kernelParams.h` of FlashInfer 0.6.14 and 0.6.15.post1.
"""

from __future__ import annotations

from .call import Call, HeadDims
from .layouts import XQA_OPS, Layout
from .slabs import Scratch, carves_scratch, ceil_div
from .xqa import may_use_xqa_scratch, xqa_scratch

# The widest tile of any generation kernel: 128 query rows, at most 256 value elements per CTA.
_WIDEST_STEP_Q = 128
_WIDEST_SPLIT_V = 256
# Multi-head latent attention: at most 64 rows, values of one CTA or of a 2-CTA pair together.
_MLA_STEP_Q = 64
_MLA_DIMS = {(576, 512), (512, 512), (320, 256)}
# A kernel's KV step is one or two tiles of 128 tokens; the compiled kernels alone know which.
_KV_STEPS = (128, 256)
_SPARSE_MLA_HEADS = {8, 16, 32, 64, 128}


def scratch(call: Call, layout: Layout) -> Scratch:
    """Scratch bytes that the kernel writes for `call`, over a KV cache as long as it can be.

    The grid's Z is the batch, and KV is split only while CTAs are fewer than half the SMs, so any
    batch above sm_count / 2 writes none; nor do context and ragged. XQA's: see module `xqa`.
    """
    if call.entry in XQA_OPS:
        return xqa_scratch(call)
    if not carves_scratch(call.entry, layout) or not may_use_scratch(call):
        return Scratch(0, True)
    dims = call.dims
    if dims is None:
        return Scratch(_bound(call.sm_count, _WIDEST_STEP_Q, _WIDEST_SPLIT_V), False)
    if (dims.qk, dims.vo) not in _MLA_DIMS:
        return Scratch(_bound(call.sm_count, _WIDEST_STEP_Q, min(dims.vo, _WIDEST_SPLIT_V)), False)
    if not dims.top_k or dims.vo != 512 or call.q_len != 1 or call.heads not in _SPARSE_MLA_HEADS:
        return Scratch(_bound(call.sm_count, _MLA_STEP_Q, dims.vo), False)
    by_step = {_sparse_mla(call, dims, kv_step) for kv_step in _KV_STEPS}
    return Scratch(max(by_step), len(by_step) == 1)


def may_use_scratch(call: Call) -> bool:
    """Whether a kernel chosen for `call` can split KV over CTAs at all."""
    if call.entry in XQA_OPS:
        return may_use_xqa_scratch(call)
    return call.entry in ("decode", "dsv4") and 0 < call.batch <= call.sm_count // 2


def _bound(sm_count: int, step_q: int, head_dim_v: int) -> int:
    return sm_count * step_q * (8 + 2 * head_dim_v)


def _sparse_mla(call: Call, dims: HeadDims, kv_step: int) -> int:
    """Scratch of the sparse MLA kernel that FlashInfer selects for one query token per row.

    Where SMs would be idle, pairs of CTAs or two or four of them share the value dimension: each
    writes as much less as they are more.
    """
    step_q = _sparse_mla_step_q(call, dims)
    ctas = call.batch * (call.heads // step_q)
    split = _kv_split(call, dims, kv_step, ctas)
    if call.batch == 1 and dims.qk == 576:
        # One row is spread over the value dimension even if fewer CTAs are left to split its KV.
        split = _kv_split(
            call, dims, kv_step, ctas * (4 if ctas * split * 2 <= call.sm_count else 2)
        )
    if split <= 1:
        return 0
    return call.sm_count * step_q * 8 + ctas * split * step_q * dims.vo * 2


def _sparse_mla_step_q(call: Call, dims: HeadDims) -> int:
    if call.heads > 32:
        return _MLA_STEP_Q
    half = call.heads // 2
    few_ctas = call.batch * ceil_div(dims.top_k, 128) <= call.sm_count // 8
    return half if half >= 8 and few_ctas else call.heads


def _kv_split(call: Call, dims: HeadDims, kv_step: int, ctas: int) -> int:
    return min(ceil_div(dims.top_k, 2 * kv_step), max(1, call.sm_count // ctas))
