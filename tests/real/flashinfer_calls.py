"""Every public FlashInfer call that reaches a trtllm-gen native op, ready to run on CPU tensors.

Each builder takes a `Shape` and a workspace tensor and returns the call without arguments. Large
batches stay cheap: what nobody reads is allocated and never touched.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ws_guard.sizing import Entry

    Builder = Callable[["Shape", torch.Tensor], Callable[[], Any]]

MIB = 1 << 20
PAGE = 64
PAGES = 4
KV_LENGTH = 128
TOP_K = 2048
KV_RANK, ROPE = 512, 64
HEAD_DIM = 128


class Shape(NamedTuple):
    """Rows, query heads, query tokens per row, and whether the caller wants the LSE back."""

    batch: int
    heads: int = 64
    q_len: int = 1
    lse: bool = False


class PublicCall(NamedTuple):
    """A builder, the native entry that it reaches, and whether it can return an LSE."""

    entry: Entry
    build: Builder
    lse: bool = True


def workspace(size: int) -> torch.Tensor:
    """A workspace of `size` bytes, as engines allocate one; its pages are never touched."""
    import torch

    return torch.empty(size, dtype=torch.uint8)


def sparse_mla(shape: Shape, buffer: torch.Tensor) -> Callable[[], Any]:
    """vLLM's call: every token a row of its own, a top-k of 2,048 tokens each."""
    import torch

    table = torch.zeros(1, 1, TOP_K, dtype=torch.int32).expand(shape.batch, shape.q_len, TOP_K)
    return _mla(shape, buffer, table, sparse_mla_top_k=TOP_K)


def dense_mla(shape: Shape, buffer: torch.Tensor) -> Callable[[], Any]:
    return _mla(shape, buffer, _table(shape))


def _mla(
    shape: Shape, buffer: torch.Tensor, table: torch.Tensor, **more: object
) -> Callable[[], Any]:
    import torch
    from flashinfer.mla import trtllm_batch_decode_with_kv_cache_mla as call

    width = KV_RANK + ROPE
    return _bound(
        call,
        query=_bf16(shape.batch, shape.q_len, shape.heads, width),
        kv_cache=_bf16(PAGES, PAGE, width),
        workspace_buffer=buffer,
        qk_nope_head_dim=128,
        kv_lora_rank=KV_RANK,
        qk_rope_head_dim=ROPE,
        block_tables=table,
        seq_lens=torch.full((shape.batch,), KV_LENGTH, dtype=torch.int32),
        max_seq_len=KV_LENGTH,
        bmm1_scale=0.1,
        backend="trtllm-gen",
        return_lse=shape.lse,
        **more,
    )


def decode(shape: Shape, buffer: torch.Tensor) -> Callable[[], Any]:
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache as call

    return _bound(
        call,
        query=_bf16(shape.batch * shape.q_len, shape.heads, HEAD_DIM),
        kv_cache=_paged_kv(shape.heads),
        workspace_buffer=buffer,
        block_tables=_table(shape),
        seq_lens=torch.full((shape.batch,), KV_LENGTH, dtype=torch.int32),
        max_seq_len=KV_LENGTH,
        backend="trtllm-gen",
        q_len_per_req=shape.q_len,
        return_lse=shape.lse,
    )


def context(shape: Shape, buffer: torch.Tensor) -> Callable[[], Any]:
    import torch
    from flashinfer.prefill import trtllm_batch_context_with_kv_cache as call

    return _bound(
        call,
        query=_bf16(shape.batch * shape.q_len, shape.heads, HEAD_DIM),
        kv_cache=_paged_kv(shape.heads),
        workspace_buffer=buffer,
        block_tables=_table(shape),
        seq_lens=torch.full((shape.batch,), KV_LENGTH, dtype=torch.int32),
        max_q_len=shape.q_len,
        max_kv_len=KV_LENGTH,
        bmm1_scale=0.1,
        bmm2_scale=1.0,
        batch_size=shape.batch,
        cum_seq_lens_q=_offsets(shape.batch, shape.q_len),
        cum_seq_lens_kv=_offsets(shape.batch, KV_LENGTH),
        return_lse=shape.lse,
    )


def ragged(shape: Shape, buffer: torch.Tensor) -> Callable[[], Any]:
    import torch
    from flashinfer.prefill import trtllm_ragged_attention_deepseek as call

    tokens = shape.batch * shape.q_len
    return _bound(
        call,
        query=_bf16(tokens, shape.heads, 192),
        key=_bf16(tokens, shape.heads, 192),
        value=_bf16(tokens, shape.heads, HEAD_DIM),
        workspace_buffer=buffer,
        seq_lens=torch.full((shape.batch,), shape.q_len, dtype=torch.int32),
        max_q_len=shape.q_len,
        max_kv_len=shape.q_len,
        bmm1_scale=0.1,
        bmm2_scale=1.0,
        o_sf_scale=-1.0,
        batch_size=shape.batch,
        window_left=-1,
        cum_seq_lens_q=_offsets(shape.batch, shape.q_len),
        cum_seq_lens_kv=_offsets(shape.batch, shape.q_len),
        enable_pdl=True,
        is_causal=True,
        return_lse=shape.lse,
    )


def dsv4(shape: Shape, buffer: torch.Tensor) -> Callable[[], Any]:
    import torch
    from flashinfer.mla import trtllm_batch_decode_sparse_mla_dsv4 as call

    tokens = shape.batch * shape.q_len
    return _bound(
        call,
        query=_bf16(shape.batch, shape.q_len, shape.heads, 512),
        swa_kv_cache=_bf16(PAGES, 1, PAGE, 512),
        workspace_buffer=buffer,
        sparse_indices=torch.zeros(tokens, 256, dtype=torch.int32),
        compressed_kv_cache=_bf16(PAGES, 1, PAGE, 512),
        sparse_topk_lens=torch.full((tokens,), 128, dtype=torch.int32),
        seq_lens=torch.full((shape.batch,), KV_LENGTH, dtype=torch.int32),
        bmm1_scale=0.1,
        backend="trtllm-gen",
    )


def decode_wrapper(shape: Shape, buffer: torch.Tensor) -> Callable[[], Any]:
    """`BatchDecodeWithPagedKVCacheWrapper`, planned; one query token per row."""
    import torch
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    wrapper = BatchDecodeWithPagedKVCacheWrapper(buffer, "HND", backend="trtllm-gen")
    wrapper.plan(
        *_page_plan(shape),
        num_qo_heads=shape.heads,
        num_kv_heads=_kv_heads(shape.heads),
        head_dim=HEAD_DIM,
        page_size=PAGE,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    query = _bf16(shape.batch, shape.heads, HEAD_DIM)
    return _bound(wrapper.run, q=query, paged_kv_cache=_paged_kv(shape.heads), return_lse=shape.lse)


def prefill_wrapper(shape: Shape, buffer: torch.Tensor) -> Callable[[], Any]:
    """`BatchPrefillWithPagedKVCacheWrapper`, planned."""
    import torch
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    wrapper = BatchPrefillWithPagedKVCacheWrapper(buffer, "HND", backend="trtllm-gen")
    wrapper.plan(
        _offsets(shape.batch, shape.q_len),
        *_page_plan(shape),
        num_qo_heads=shape.heads,
        num_kv_heads=_kv_heads(shape.heads),
        head_dim_qk=HEAD_DIM,
        page_size=PAGE,
        causal=True,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    query = _bf16(shape.batch * shape.q_len, shape.heads, HEAD_DIM)
    return _bound(wrapper.run, q=query, paged_kv_cache=_paged_kv(shape.heads), return_lse=shape.lse)


PUBLIC_CALLS: dict[str, PublicCall] = {
    "sparse_mla": PublicCall("decode", sparse_mla),
    "dense_mla": PublicCall("decode", dense_mla),
    "decode": PublicCall("decode", decode),
    "context": PublicCall("context", context),
    "ragged": PublicCall("ragged", ragged),
    "dsv4": PublicCall("dsv4", dsv4, lse=False),
    "decode_wrapper": PublicCall("decode", decode_wrapper),
    "prefill_wrapper": PublicCall("context", prefill_wrapper),
}


def _bound(function: Callable[..., Any], **arguments: object) -> Callable[[], Any]:
    """The call with those arguments that this release's signature knows."""
    known = inspect.signature(function).parameters
    return functools.partial(function, **{k: v for k, v in arguments.items() if k in known})


def _bf16(*sizes: int) -> torch.Tensor:
    import torch

    return torch.empty(*sizes, dtype=torch.bfloat16)


def _kv_heads(heads: int) -> int:
    return 8 if heads % 8 == 0 else 1


def _paged_kv(heads: int) -> torch.Tensor:
    return _bf16(PAGES, 2, _kv_heads(heads), PAGE, HEAD_DIM)


def _table(shape: Shape) -> torch.Tensor:
    import torch

    return torch.zeros(shape.batch, KV_LENGTH // PAGE, dtype=torch.int32)


def _offsets(rows: int, step: int) -> torch.Tensor:
    import torch

    return torch.arange(0, (rows + 1) * step, step, dtype=torch.int32)


def _page_plan(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Offsets into the page list, the pages, and the tokens of each row's last page."""
    import torch

    pages_per_row = KV_LENGTH // PAGE
    return (
        _offsets(shape.batch, pages_per_row),
        torch.zeros(shape.batch * pages_per_row, dtype=torch.int32),
        torch.full((shape.batch,), PAGE, dtype=torch.int32),
    )
