"""The three ways in which FlashInfer's launcher carves slabs out of the workspace, as data.

Source: `trtllm_fmha_kernel_launcher.cu` and `allocator.h` of the wheels 0.6.8.post1 to 0.7.4.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Entry = Literal["decode", "context", "ragged", "dsv4", "xqa", "xqa_mla"]
Slab = Literal["counter", "softmax_stats", "scratch"]
SizeRule = Literal["counter", "padded_stats", "stats_per_token", "rest"]
Condition = Literal["always", "lse"]

#: The entries of trtllm-gen's launcher.
ENTRIES: tuple[Entry, ...] = ("decode", "context", "ragged", "dsv4")
SLABS: tuple[Slab, ...] = ("counter", "softmax_stats", "scratch")

#: The native op behind each entry of trtllm-gen, as its launcher exports it.
OPS: dict[Entry, str] = {
    "decode": "trtllm_paged_attention_decode",
    "context": "trtllm_paged_attention_context",
    "ragged": "trtllm_ragged_attention",
    "dsv4": "trtllm_paged_attention_decode_sparse_mla_dsv4",
}
#: XQA's native ops, of modules of their own. FlashInfer's Python slices their workspace, whatever
#: the layout: no allocator looks at it, and nothing is refused.
XQA_OPS: dict[Entry, str] = {"xqa": "xqa_wrapper", "xqa_mla": "xqa_wrapper_mla"}
ENTRY_OF_OP: dict[str, Entry] = {op: entry for entry, op in (OPS | XQA_OPS).items()}

#: What the launcher calls each slab in its error texts.
NATIVE_SLABS: dict[Slab, str] = {
    "counter": "trtllm_gen_counter_workspace",
    "softmax_stats": "trtllm_gen_softmax_workspace",
    "scratch": "trtllm_gen_scratch_workspace",
}
#: The name under which a too small external counter is refused.
EXTERNAL_COUNTER = "multi_ctas_kv_counter_buffer"

ALIGNMENT = 16
MIB = 1 << 20
#: What Python slices off the workspace as XQA's semaphores before it hands on the rest as scratch.
XQA_SEMAPHORE_BYTES = 8 * MIB
#: vLLM's default workspace: the base that a recommendation keeps.
DEFAULT_WORKSPACE_BYTES = 394 * MIB
#: The grid's Z dimension is the batch.
GRID_LIMIT_BATCH = 65_535


class CarveStep(NamedTuple):
    """One `aligned_alloc` of the launcher: which slab, sized by which rule, on what condition."""

    slab: Slab
    size: SizeRule
    when: Condition


class Layout(NamedTuple):
    """What stands inside the workspace, entry by entry, in carving order."""

    name: str
    steps: dict[Entry, tuple[CarveStep, ...]]
    #: Entries whose counter is a buffer of its own that the launcher checks.
    external_counter: frozenset[Entry]
    #: Bytes of `kTrtllmGenSoftmaxStatsGuardBytes` behind every padded stats slab.
    guard_bytes: int
    #: Multiple to which the padded stats slab rounds `max_q_len` up, in tokens.
    q_rounding: int
    #: Bytes of the counter where it stands inside the workspace, whatever the call.
    counter_bytes: int


_COUNTER = CarveStep("counter", "counter", "always")
_STATS_IF_LSE = CarveStep("softmax_stats", "padded_stats", "lse")
_STATS_PER_TOKEN = CarveStep("softmax_stats", "stats_per_token", "always")
_SCRATCH = CarveStep("scratch", "rest", "always")

_COUNTER_BYTES = 8192 * 256 * 4

LAYOUTS: dict[str, Layout] = {
    "A": Layout(
        name="A",
        steps={
            "decode": (_COUNTER, _SCRATCH),
            "context": (),
            "ragged": (_COUNTER, _STATS_PER_TOKEN, _SCRATCH),
            "dsv4": (_COUNTER, _SCRATCH),
        },
        external_counter=frozenset(),
        guard_bytes=0,
        q_rounding=0,
        counter_bytes=_COUNTER_BYTES,
    ),
    "B": Layout(
        name="B",
        steps={
            "decode": (_COUNTER, _STATS_IF_LSE, _SCRATCH),
            "context": (_STATS_IF_LSE,),
            "ragged": (_COUNTER, _STATS_IF_LSE, _SCRATCH),
            "dsv4": (_COUNTER, _SCRATCH),
        },
        external_counter=frozenset(),
        guard_bytes=MIB,
        q_rounding=256,
        counter_bytes=_COUNTER_BYTES,
    ),
    "C": Layout(
        name="C",
        steps={
            "decode": (_STATS_IF_LSE, _SCRATCH),
            "context": (_STATS_IF_LSE,),
            "ragged": (_STATS_IF_LSE, _SCRATCH),
            "dsv4": (_SCRATCH,),
        },
        external_counter=frozenset({"decode", "dsv4"}),
        guard_bytes=MIB,
        q_rounding=256,
        counter_bytes=0,
    ),
}
