"""How far a workspace reaches: the overflow threshold and the overrun range."""

from __future__ import annotations

from bisect import bisect_left

from .call import Call
from .carving import carve, need
from .errors import INT32_MAX
from .layouts import Layout
from .scratch import scratch

_MAX_BATCH = INT32_MAX


def overflow_threshold_batch(
    call: Call, layout: Layout, workspace_bytes: int, address: int = 0
) -> int | None:
    """The largest batch whose carve the launcher accepts, other arguments equal.

    None where nothing limits it, 0 where batch 1 is refused. Slabs only grow with the batch, so
    the answer is found by bisection over the carve itself, in any layout.
    """

    def refused(batch: int) -> bool:
        return not carve(call._replace(batch=batch), layout, workspace_bytes, address).ok

    if not refused(_MAX_BATCH):
        return None
    return bisect_left(range(1, _MAX_BATCH + 1), True, key=refused)


def overruns(call: Call, layout: Layout, workspace_bytes: int, address: int = 0) -> bool:
    """Whether the carve succeeds but the scratch that the kernel writes does not fit."""
    answer = carve(call, layout, workspace_bytes, address)
    left = answer.scratch_available
    return answer.ok and left is not None and scratch(call, layout).bytes > left


def overrun_batches(
    call: Call, layout: Layout, workspace_bytes: int, address: int = 0
) -> tuple[int, int] | None:
    """(lowest, highest) batch up to `call.batch` that overruns; None in a sane workspace."""

    def hit(batch: int) -> bool:
        return overruns(call._replace(batch=batch), layout, workspace_bytes, address)

    last = last_batch_with_scratch(call)
    if call.entry == "xqa_mla":
        first = bisect_left(range(1, last + 1), True, key=hit) + 1
        return (first, last) if first <= last else None
    hits = [batch for batch in range(1, last + 1) if hit(batch)]
    return (hits[0], hits[-1]) if hits else None


def worst_need_bytes(call: Call, layout: Layout, address: int = 0) -> int:
    """The largest need of any batch up to `call.batch`, in bytes.

    Slabs grow with the batch and scratch ends at sm_count / 2 rows: the worst is the planned batch
    or one of the few that use scratch. (Where scratch never ends it grows as well.)
    """
    batches = [*range(1, min(call.batch, call.sm_count // 2) + 1), call.batch]
    return max(need(call._replace(batch=b), layout, address).total for b in batches)


def last_batch_with_scratch(call: Call) -> int:
    """The largest batch up to `call.batch` for which the kernel may write scratch at all."""
    if call.entry == "xqa_mla":
        return call.batch
    return min(call.batch, call.sm_count // 2)
