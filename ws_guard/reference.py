"""A stand-in for FlashInfer's compiled module `fmha_gen` on CPU tensors.

It carves the workspace by the rules of `ws_guard.sizing`, refuses in FlashInfer's own words, and
computes real MLA attention: tests and the demo use it where there is no GPU and no compiler.
Importing it imports torch; nothing else in ws_guard imports it early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ws_guard.sizing import (
    ENTRY_OF_OP,
    LAYOUTS,
    OPS,
    Call,
    InputError,
    Layout,
    Refusal,
    carve,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Line of the `throw` in FlashInfer's `allocator.h`: all that tells layout B from C in a text.
ALLOCATOR_LINES: dict[str, int] = {"A": 49, "B": 49, "C": 71}

# A `TVM_FFI_CHECK` prints its condition only (0.6.15 on): the numbers never reach Python.
_SHORT_COUNTER_TEXT = (
    "Check failed: (static_cast<size_t>(multi_ctas_kv_counter_size) >= counter_bytes) is false: "
)

# FlashInfer's kernels work in base 2: scale tensors and LSE carry log2(e) (`fmha/lse.cuh`).
_LOG2E = 1.44269504088896340736
# Float32 elements that a chunk of rows may gather and score at once: 64 MiB.
_CHUNK_ELEMENTS = 1 << 24


class NativeModule:
    """What loading the spec `fmha_gen` gives: one attribute per native op, as the release has it.

    `layout` is a layout or its name. `parameters` maps each op to its native parameter names in
    order, as the launcher's source of one release declares them; an op that it lacks is no
    attribute. Raises `InputError` for a layout or an op that FlashInfer does not have.
    """

    trtllm_paged_attention_decode: NativeOp
    trtllm_paged_attention_context: NativeOp
    trtllm_ragged_attention: NativeOp
    trtllm_paged_attention_decode_sparse_mla_dsv4: NativeOp

    def __init__(self, layout: Layout | str, parameters: Mapping[str, Sequence[str]]) -> None:
        known = LAYOUTS.get(layout) if isinstance(layout, str) else layout
        if known is None:
            raise InputError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        for op, names in parameters.items():
            if op not in OPS.values():
                raise InputError(f"op must be one of {', '.join(OPS.values())}, got {op!r}")
            setattr(self, op, NativeOp(op, known, tuple(names)))


class NativeOp(NamedTuple):
    """One native op, called with the positional arguments of its release.

    Decode computes MLA attention, sparse or dense: K and V are one cache with a single KV head.
    Everything else (other decodes, context, ragged, dsv4) is carved and `out` filled with zeros.
    Only `out` and `lse` are ever written, never the workspace. Tensors on `meta` are carved alone,
    so a call of any size costs no memory.

    Raises `RuntimeError` with FlashInfer's text where the launcher would refuse, `TypeError` for a
    wrong number of arguments.
    """

    name: str
    layout: Layout
    parameters: tuple[str, ...]

    def __call__(self, *args: object) -> None:
        """Carve, refuse or compute, as the launcher would."""
        if len(args) != len(self.parameters):
            raise TypeError(
                f"Mismatched number of arguments when calling: `{self.name}`. "
                f"Expected {len(self.parameters)} but got {len(args)} arguments"
            )
        named: dict[str, Any] = dict(zip(self.parameters, args, strict=True))
        address = named["workspace_buffer"].data_ptr()
        answer = carve(_call_of(self.name, named), self.layout, named["workspace_size"], address)
        if answer.refused is not None:
            raise RuntimeError(refusal_text(answer.refused, self.layout))
        if self.name == "trtllm_paged_attention_decode" and _is_mla(named):
            _decode_mla(named)
        else:
            named["out"].zero_()


def refusal_text(refusal: Refusal, layout: Layout) -> str:
    """The text of the RuntimeError with which the launcher of that layout refuses."""
    if refusal.size is None:
        return _SHORT_COUNTER_TEXT
    return (
        "Error in function 'aligned_alloc' at "
        f"include/flashinfer/allocator.h:{ALLOCATOR_LINES[layout.name]}: "
        f"Buffer overflow when allocating memory for {refusal.slab} with size {refusal.size} "
        f"and alignment {refusal.alignment}, but only {refusal.available} bytes available in "
        "AlignedAllocator. Increase the workspace buffer size."
    )


def _call_of(op: str, args: Mapping[str, Any]) -> Call:
    """The call as the launcher derives it from its arguments."""
    counter = args.get("multi_ctas_kv_counter_buffer")
    return Call(
        entry=ENTRY_OF_OP[op],
        heads=args["query"].size(1),
        batch=args["batch_size"],
        q_len=args["max_q_len"],
        lse=args.get("lse") is not None,
        sm_count=args["sm_count"],
        sum_q=args["query"].size(0),
        counter_buffer_bytes=None if counter is None else counter.nbytes,
    )


def _is_mla(args: Mapping[str, Any]) -> bool:
    """Whether a decode is one that `_decode_mla` can compute."""
    query, cache, out = args["query"], args["key_cache"], args["out"]
    one_cache = cache.size(-3) == 1 and cache.data_ptr() == args["value_cache"].data_ptr()
    latent = args["sparse_mla_top_k"] > 0 or query.size(-1) > out.size(-1)
    one_table = args.get("uses_shared_paged_kv_idx") is not False
    return one_cache and latent and one_table and not out.is_meta


def _decode_mla(args: Mapping[str, Any]) -> None:
    """Attention of every query row over its tokens, a chunk of rows at a time."""
    query, cache, lse = args["query"], args["key_cache"], args.get("lse")
    out = args["out"].view(*query.shape[:2], -1)
    request, lengths = _rows(args)
    table, source = _slots(args, request)
    # Columns that no row reaches are not even gathered: short sequences stay cheap.
    table = table[:, : max(1, int(lengths.max()))]
    columns = torch.arange(table.size(1))
    page_size, (_, heads, dim) = cache.size(-2), query.shape
    # Per row: the query and its result, and for each token the key and two numbers per head.
    step = max(1, _CHUNK_ELEMENTS // (2 * heads * dim + columns.numel() * (dim + 2 * heads)))
    for rows in torch.arange(request.numel()).split(step):
        slots = table[source[rows]].long()
        seen = (slots >= 0) & (columns < lengths[rows, None])
        # An unseen slot may point anywhere: token 0 stands in and is masked.
        slots = slots.where(seen, 0)
        keys = cache[slots // page_size, 0, slots % page_size].float()
        scale, sinks = _score_scale(args["bmm1_scale"]), args.get("attention_sinks")
        values, natural = _attend(query[rows].float() * scale, keys, seen, out.size(-1), sinks)
        out[rows] = (values * float(args["bmm2_scale"])).to(out.dtype)
        if lse is not None:
            lse[rows] = natural * (_LOG2E * args.get("lse_scale", 1.0))


def _rows(args: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """For each query row the request it belongs to, and how many tokens of it the row sees.

    A request's last row sees the whole sequence, each row before it one token less
    (`fmhaReduction.cu`), unless the call brings a length per row.
    """
    batch, cumulative = args["batch_size"], args.get("cum_seq_lens_q")
    if cumulative is None:
        counts = torch.full((batch,), args["max_q_len"])
    else:
        counts = cumulative.diff().long()
    request = torch.arange(batch).repeat_interleave(counts)
    lengths = args.get("sparse_mla_top_k_lens")
    if lengths is None:
        behind = counts.cumsum(0)[request] - 1 - torch.arange(request.numel())
        lengths = args["seq_lens"][request] - behind
    return request, lengths


def _slots(args: Mapping[str, Any], request: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A table of token slots (page * page size + offset), and which line of it each row reads.

    Sparse MLA brings one line per row, padded with -1. Otherwise a request's pages are spelled
    out, one line per request.
    """
    table, top_k = args["block_tables"], args["sparse_mla_top_k"]
    if top_k > 0:
        return table.reshape(-1, top_k), torch.arange(request.numel())
    page_size = args["key_cache"].size(-2)
    return (table[:, :, None] * page_size + torch.arange(page_size)).flatten(1), request


def _score_scale(scale: float | torch.Tensor) -> float:
    """The factor of the scores: a tensor holds it times log2(e), a plain number does not."""
    return float(scale) / _LOG2E if isinstance(scale, torch.Tensor) else scale


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    seen: torch.Tensor,
    value_dim: int,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 attention and natural LSE of scaled queries [rows, heads, dim] over their own keys.

    The values are the first `value_dim` elements of the keys [rows, tokens, dim]. A row that sees
    nothing gives zeros and an LSE of -inf; the kernel leaves such a row undefined.
    """
    seen = seen[:, None, :]
    scores = torch.einsum("rhd,rtd->rht", query, keys).masked_fill_(~seen, float("-inf"))
    lse = scores.logsumexp(-1)
    if sinks is not None:
        lse = lse.logaddexp(sinks)
    weights = scores.sub_(lse[..., None]).exp_().where(seen, 0.0)
    return torch.einsum("rht,rtv->rhv", weights, keys[..., :value_dim]), lse
