"""Cuts a decode call along its batch into pieces that fit the workspace.

Only decode can be cut at the native boundary: context and ragged keep their offsets on the device.
SGLang does the same for its own sparse decode (`dsa_dcp.py`, 0.5.23), and turns PDL off for the
pieces as well: a piece must not start before the one in front of it has left the workspace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from ws_guard import sizing
from ws_guard.foreign import Tensor
from ws_guard.sizing import Call, Layout

from .calls import NativeCall

#: Tensors with a line per row or per token of the batch.
_SLICED = ("out", "query", "block_tables", "seq_lens", "lse", "sparse_mla_top_k_lens")
#: Arguments that a call which can be cut leaves at nothing, and what they would mean.
_REFUSED = {
    "cum_seq_lens_q": "its rows have query lengths of their own",
    "out_scale_factor": "its output is FP4 with scale factors",
    "enable_block_sparse_attention": "its block tables are block-sparse",
}
#: Arguments that hold for every piece as they are.
_SHARED = frozenset(
    {
        "key_cache",
        "value_cache",
        "workspace_buffer",
        "multi_ctas_kv_counter_buffer",
        "max_q_len",
        "max_kv_len",
        "bmm1_scale",
        "bmm2_scale",
        "o_sf_scale",
        "o_sf_vec_size",
        "o_sf_start_index",
        "window_left",
        "sparse_mla_top_k",
        "sm_count",
        "workspace_size",
        "attention_sinks",
        "key_block_scales",
        "value_block_scales",
        "skip_softmax_threshold_scale_factor",
        "uses_shared_paged_kv_idx",
        "lse_scale",
        "lse_stride_tokens",
        "lse_stride_heads",
        "bf16q_fp8kv_transform_mode",
        "use_fp16_softmax",
    }
)
_MULTI_WAVE = "FLASHINFER_TRTLLM_GEN_MULTI_WAVE_KV_SPLIT"


class UnsplittableError(Exception):
    """A call that cannot be cut; the text says why."""


class Splitter:
    """Cuts the calls of one op, by the parameter names of the installed launcher."""

    def __init__(self, parameters: Sequence[str]) -> None:
        self._parameters = tuple(parameters)
        known = {*_SLICED, *_REFUSED, *_SHARED, "batch_size", "enable_pdl"}
        self._unknown = [name for name in parameters if name not in known]

    def pieces(
        self, call: Call, native: NativeCall, layout: Layout, args: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        """The arguments of each piece, in order; `UnsplittableError` where the rules forbid it."""
        named = dict(zip(self._parameters, args, strict=True))
        for name in self._unknown:
            if _is_given(named[name]):
                raise UnsplittableError(f"what {name} means for a piece is not known")
        for name, meaning in _REFUSED.items():
            if _is_given(named.get(name)):
                raise UnsplittableError(f"{meaning} ({name})")
        call = call._replace(counter_buffer_bytes=native.counter_buffer_bytes)
        rows = piece_rows(call, layout, native.workspace_bytes, native.workspace_address)
        pieces, start = [], 0
        for batch in rows:
            changed = {"batch_size": batch, "enable_pdl": False}
            for name in _SLICED:
                if named.get(name) is not None:
                    changed[name] = _slice(name, named[name], start, batch, call)
            pieces.append(tuple((named | changed).values()))
            start += batch
        return pieces


def _is_given(value: object) -> bool:
    """Whether an argument turns something on; a tensor is not compared, which would ask CUDA."""
    return value is not None and value is not False


def _slice(name: str, tensor: Tensor, start: int, batch: int, call: Call) -> Tensor:
    lines = tensor.shape[0]
    if lines not in (call.batch, call.batch * call.q_len):
        raise UnsplittableError(f"{name} has {lines:,} lines for {call.batch:,} rows")
    per_row = lines // call.batch
    return tensor[start * per_row : (start + batch) * per_row]


def piece_rows(call: Call, layout: Layout, workspace_bytes: int, address: int) -> list[int]:
    """Batches of the fewest near-equal pieces that fit, larger ones first.

    Raises `UnsplittableError` where none do. A piece that may use scratch sums in another order
    than the whole call did, so no piece comes down to that unless the whole call is there; then
    the scratch of each counts.
    """
    least = 1 if sizing.may_use_scratch(call) else _scratch_ends(call) + 1

    def fits(batch: int) -> bool:
        piece = call._replace(batch=batch)
        answer = sizing.carve(piece, layout, workspace_bytes, address)
        return answer.ok and not sizing.overruns(piece, layout, workspace_bytes, address)

    for count in _counts(call, layout, workspace_bytes, address):
        rows = near_equal(call.batch, count)
        if rows[-1] < least:
            break
        if all(fits(batch) for batch in {rows[0], rows[-1]}):
            return rows
    if least > 1:
        raise UnsplittableError(
            f"pieces that fit would have fewer than {least:,} rows, and use scratch"
        )
    raise UnsplittableError("not even a single row fits")


def near_equal(batch: int, count: int) -> list[int]:
    """`batch` rows in `count` pieces that differ by a row at most, larger ones first."""
    small, more = divmod(batch, count)
    return [small + 1] * more + [small] * (count - more)


def _counts(call: Call, layout: Layout, workspace_bytes: int, address: int) -> Iterator[int]:
    """How many pieces to try: from what the threshold asks for, up to one for each row."""
    threshold = sizing.overflow_threshold_batch(call, layout, workspace_bytes, address)
    fewest = 2 if not threshold else max(2, -(-call.batch // threshold))
    return iter(range(fewest, call.batch + 1))


def _scratch_ends(call: Call) -> int:
    """The largest batch that may use scratch. Source: FlashInfer 0.6.14 to 0.7.4, and the latter's
    multi-wave mode, in which up to two rows per SM do."""
    if os.environ.get(_MULTI_WAVE) == "1":
        return 2 * call.sm_count
    return call.sm_count // 2
