"""What the calls that may be lead to: the slab of the largest step, the rows that still fit."""

from __future__ import annotations

from ws_guard.sizing import Call, overflow_threshold_batch
from ws_guard.sizing.slabs import slab_bytes

from .evidence import Evidence
from .limits import planned_rows
from .plausibility import Candidate
from .shapes import MOST_BATCH
from .wordings import Fault

_MOST_THRESHOLDS = 64


def _call(candidate: Candidate, batch: int) -> Call:
    shape = candidate.shape
    return Call(candidate.reading.entry, shape.heads, batch, shape.low, lse=True)


def threshold_of(fault: Fault, candidates: list[Candidate], evidence: Evidence) -> int | None:
    """The largest batch that fits, where every candidate leads to the same."""
    if fault.available is None and evidence.workspace_bytes is None:
        return None
    found: set[int | None] = set()
    asked = set()
    for each in candidates:
        size = evidence.workspace_bytes or each.reading.workspace_bytes(fault.available or 0)
        asked.add((each.reading.layout.name, size, _call(each, 1)))
        if len(asked) > _MOST_THRESHOLDS:
            return None
        found.add(overflow_threshold_batch(_call(each, 1), each.reading.layout, size))
        if len(found) > 1:
            return None
    return found.pop()


def lowest_thresholds(
    fault: Fault, candidates: list[Candidate], evidence: Evidence
) -> dict[int, int]:
    """By heads, rows of which no call of the likeliest reading is refused, if its size is fixed.

    Empty where it may be rows of several lengths: of long ones hardly any fits.
    """
    first = candidates[0].reading
    if first.site is None or first.site.size != "fixed":
        return {}
    its = [each for each in candidates if each.reading.key == first.key]
    if len({each.shape.low for each in its}) > 1:
        return {}
    found = {each.shape.heads: threshold_of(fault, [each], evidence) for each in its}
    return {heads: rows for heads, rows in found.items() if rows}


def planned_slabs(fault: Fault, candidates: list[Candidate], evidence: Evidence) -> dict[int, int]:
    """By heads, the slab of the worst step that the flags allow; at least that of the call."""
    worst: dict[int, int] = {}
    for each in candidates:
        call, heads = worst_call(each, evidence), each.shape.heads
        size = slab_bytes("padded_stats", call, each.reading.layout) if call else 0
        worst[heads] = max(size, worst.get(heads, fault.size or 0))
    return worst


def worst_call(candidate: Candidate, evidence: Evidence) -> Call | None:
    """The largest call of the worst step that the flags allow; None where they do not tell."""
    reading, shape = candidate
    rows = planned_rows(reading, evidence)
    if rows is None or not 0 < rows <= MOST_BATCH or reading.rule != "padded_stats":
        return None
    if reading.site is None or reading.site.batch == "tokens":
        # Each row is rounded up: rows of one token are the largest slab of so many tokens.
        return _call(candidate, max(rows, shape.batch))._replace(q_len=1)
    return _call(candidate, max(rows, shape.batch))
