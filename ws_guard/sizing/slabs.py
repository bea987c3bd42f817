"""Slab sizes in bytes. Source of every formula: `trtllm_fmha_kernel_launcher.cu` (see layouts)."""

from __future__ import annotations

from typing import NamedTuple

from .call import Call
from .layouts import XQA_OPS, Entry, Layout, SizeRule, Slab

_SIZEOF_FLOAT2 = 8
_SIZEOF_INT32 = 4


class Scratch(NamedTuple):
    """Bytes of scratch; `exact`, or the most that any kernel of that shape writes."""

    bytes: int
    exact: bool


def ceil_div(value: int, divisor: int) -> int:
    """`value / divisor`, rounded up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `value`."""
    return ceil_div(value, multiple) * multiple


def slab_bytes(rule: SizeRule, call: Call, layout: Layout) -> int:
    """Bytes that the launcher asks the allocator for; 0 for the slab that takes the rest."""
    if rule == "counter":
        return layout.counter_bytes
    if rule == "padded_stats":
        slots = call.heads * call.batch * round_up(call.q_len, layout.q_rounding)
        return _SIZEOF_FLOAT2 * slots + layout.guard_bytes
    if rule == "stats_per_token":
        sum_q = call.batch * call.q_len if call.sum_q is None else call.sum_q
        return _SIZEOF_FLOAT2 * call.heads * sum_q
    return 0


def external_counter_bytes(call: Call) -> int:
    """Bytes that the external counter must have (`getMultiCtasKvCounterBytes`, 0.6.15 on)."""
    return _SIZEOF_INT32 * round_up(max(call.batch * call.heads, call.sm_count), 8)


def carved_slabs(call: Call, layout: Layout) -> dict[Slab, int]:
    """The slabs that the launcher carves for this call with a size of their own, in order."""
    return {
        step.slab: slab_bytes(step.size, call, layout)
        for step in layout.steps[call.entry]
        if step.size != "rest" and (step.when == "always" or call.lse)
    }


def head_slab(entry: Entry, lse: bool, layout: Layout) -> Slab | None:
    """The slab at the head of a workspace; None where a call carves nothing."""
    if entry in XQA_OPS:
        return "counter"
    steps = (step for step in layout.steps[entry] if step.when == "always" or lse)
    return next((step.slab for step in steps), None)


def carves_scratch(entry: Entry, layout: Layout) -> bool:
    """Whether the rest of the workspace is handed to the kernel as scratch."""
    return any(step.slab == "scratch" for step in layout.steps[entry])
