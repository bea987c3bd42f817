"""Solves layout C's external counter: `4 * round_up(max(batch * heads, sm_count), 8)` bytes."""

from __future__ import annotations

from ws_guard.sizing import DEFAULT_SM_COUNT, GRID_LIMIT_BATCH, LAYOUTS, Call
from ws_guard.sizing.slabs import external_counter_bytes

from .evidence import Evidence
from .finding import Confidence, Solution
from .limits import kernel_heads
from .plausibility import rank_of_heads
from .readings import Reading
from .shapes import MOST_HEADS
from .wordings import Fault

_COUNTER_BYTES, _ROUNDING = 4, 8
_READING = Reading(LAYOUTS["C"], "decode", 0, "counter")


def solve_counter(
    fault: Fault, evidence: Evidence
) -> tuple[tuple[Solution, ...], Confidence, list[str]]:
    """Every (heads, batch) whose counter has the size that was missing, and what to say of it."""
    heads = kernel_heads(_READING, evidence)
    if fault.size is None:
        notes = ["the check tells no sizes: heads and rows of the call are missing"]
        if heads and evidence.tokens:
            call = Call("decode", max(heads), evidence.tokens, sm_count=_sms(evidence))
            size = external_counter_bytes(call)
            notes.append(f"a step of {evidence.tokens:,} rows needs a counter of {size:,} bytes")
        return (), "unsolved", notes
    slots, rest = divmod(fault.size, _COUNTER_BYTES)
    if rest or slots % _ROUNDING:
        return (), "unsolved", [f"no counter has {fault.size:,} bytes: the line was cut"]
    solutions = [
        Solution(count, batch)
        for count in sorted(heads or range(1, MOST_HEADS + 1))
        for batch in range((slots - _ROUNDING) // count + 1, slots // count + 1)
    ]
    notes = ["the counter is a buffer of its own: the size of the workspace does not matter"]
    if slots <= -(-_sms(evidence) // _ROUNDING) * _ROUNDING:
        notes.append("the SM count alone asks for it, however few the rows")
    sure: Confidence = "consistent" if solutions else "unsolved"
    return tuple(sorted(solutions, key=_implausibility)), sure, notes


def _implausibility(solution: Solution) -> tuple[bool, int]:
    launches = (solution.batch_size or 0) <= GRID_LIMIT_BATCH
    return not launches, rank_of_heads(solution.num_qo_heads)


def _sms(evidence: Evidence) -> int:
    return evidence.sm_count or DEFAULT_SM_COUNT
