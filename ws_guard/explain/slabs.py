"""Solves the slabs that trtllm-gen's launcher carves: which calls ask for exactly these bytes.

The formulas are `sizing`'s: the padded stats slab is `8 * heads * batch * round_up(q_len, 256)` and
a guard, layout A's `8 * heads * sum_q`, the counter the same whatever the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ws_guard.sizing import (
    NATIVE_SLABS,
    Call,
    Layout,
    overflow_threshold_batch,
)
from ws_guard.sizing.layouts import ALIGNMENT
from ws_guard.sizing.slabs import slab_bytes

from .evidence import Evidence
from .finding import Confidence, Solution
from .limits import is_of_step, planned_rows, possible_heads, within
from .plausibility import Candidate, by_plausibility, credible
from .readings import Reading, engine_readings, generic_readings, known_layouts
from .shapes import MOST_BATCH, Shape, each_once, shapes_of
from .slab_notes import SET_ASIDE, reading_notes, unsolved
from .wordings import Fault

SLABS = frozenset(NATIVE_SLABS.values())

_MOST_SOLUTIONS = 20_000
_MOST_THRESHOLDS = 64


class Solved(NamedTuple):
    """What a slab's size and the rest leave. `readings`: the most plausible one first.

    `planned` has, by heads that may well be, bytes of the slab in the worst step that the flags
    allow, and `lowest_thresholds` rows that fit the first reading's workspace. `bounded`: no step
    asks for more than `planned`.
    """

    layouts: tuple[str, ...]
    workspaces: tuple[int, ...]
    solutions: tuple[Solution, ...]
    threshold: int | None
    need_bytes: int | None
    planned: dict[int, int]
    lowest_thresholds: dict[int, int]
    bounded: bool
    confidence: Confidence
    readings: tuple[Reading, ...]
    notes: tuple[str, ...]


def solve_slab(fault: Fault, evidence: Evidence) -> Solved:
    """Every call that asks for the slab of a fault, by every layout that can be."""
    layouts, told, notes = known_layouts(fault, evidence)
    if fault.slab == NATIVE_SLABS["counter"]:
        return _counter(fault, layouts, notes)
    readings = _readings(fault, layouts, evidence)
    candidates = _ranked(fault, readings, evidence)
    limits = evidence
    if not candidates and evidence.layout is None:
        # Flags of another process, or words that were no flags: not all of it can be true.
        limits = evidence.unlimited()
        candidates = _ranked(fault, _readings(fault, layouts, limits), limits)
        notes += [SET_ASIDE] if candidates else []
    if not candidates:
        notes.append(unsolved(fault, layouts))
        return _without_call(notes)
    kept = list({each.reading.key: each.reading for each in candidates}.values())
    shapes = each_once(each.shape for each in candidates)
    workspaces = _workspaces(fault, kept, evidence)
    one_shape = len(shapes) == 1 and shapes[0].low == shapes[0].high
    one_layout = len({each.layout.name for each in kept}) == 1
    certain = not evidence.doubts and SET_ASIDE not in notes and _could_refuse(fault)
    exact = told and one_layout and one_shape and len(workspaces) == 1 and certain
    notes += reading_notes(fault, kept, evidence, exact)
    if len(shapes) > _MOST_SOLUTIONS:
        notes.append(f"{len(shapes):,} calls ask for these bytes: the likeliest are listed")
    likely = credible(candidates, evidence)
    return Solved(
        layouts=tuple(dict.fromkeys(each.layout.name for each in kept)),
        workspaces=workspaces,
        solutions=tuple(map(_solution, shapes[:_MOST_SOLUTIONS])),
        threshold=_threshold(fault, candidates, limits),
        need_bytes=max(each.carved for each in kept) + (fault.size or 0),
        planned=_planned(fault, likely, limits),
        lowest_thresholds=_lowest_thresholds(fault, likely, limits),
        bounded=all(_worst_call(each, limits) for each in likely),
        confidence="exact" if exact else "consistent",
        readings=tuple(kept),
        notes=tuple(notes),
    )


def _could_refuse(fault: Fault) -> bool:
    """Whether the numbers of a message go together: what fits is not refused."""
    return fault.available is None or fault.size is None or fault.available < fault.size + ALIGNMENT


def _counter(fault: Fault, layouts: tuple[Layout, ...], notes: list[str]) -> Solved:
    """The counter is as large as it is: only a tiny workspace refuses it."""
    with_counter = tuple(each.name for each in layouts if each.counter_bytes == fault.size)
    if not with_counter:
        text = f"no layout carves a counter of {fault.size:,} bytes"
        return _without_call([*notes, text])
    notes.append(
        "the counter slab is 8192 * 256 * 4 bytes whatever the call: the workspace is smaller than "
        "that, or what was handed over is not the workspace"
    )
    # It is carved first: what is available is the workspace.
    sizes = () if fault.available is None else (fault.available,)
    told = _without_call(notes)
    return told._replace(
        layouts=with_counter, workspaces=sizes, need_bytes=fault.size, confidence="consistent"
    )


def _without_call(notes: list[str]) -> Solved:
    return Solved((), (), (), None, None, {}, {}, False, "unsolved", (), tuple(notes))


def _readings(fault: Fault, layouts: tuple[Layout, ...], evidence: Evidence) -> list[Reading]:
    if fault.slab == NATIVE_SLABS["scratch"]:
        return []  # it takes what is left: no size of it tells anything of the call
    generic = list(generic_readings(fault.slab, layouts))
    if evidence.entry is not None:
        return [each for each in generic if each.entry == evidence.entry]
    by_engine = engine_readings(fault.slab, layouts, fault.available, evidence)
    solvable = [each for each in by_engine if any(_shapes(fault, each, evidence))]
    return solvable or generic


# -- shapes ---------------------------------------------------------------------------------------


def _shapes(fault: Fault, reading: Reading, evidence: Evidence) -> Iterator[Shape]:
    """Every call within the limits that asks for exactly the size."""
    if fault.size is None:
        return
    for shape in shapes_of(fault.size, reading, possible_heads(reading, evidence)):
        if kept := within(shape, reading, evidence):
            yield kept


def _ranked(fault: Fault, readings: list[Reading], evidence: Evidence) -> list[Candidate]:
    """Candidates, the most plausible first."""
    if evidence.batch is not None and evidence.kernel_heads is not None:
        # A slot tells the call itself: nothing is to be solved.
        q_len = evidence.q_len or 1
        told = Shape(evidence.kernel_heads, evidence.batch, q_len, q_len)
        return [Candidate(reading, told) for reading in readings]
    found = [
        Candidate(reading, shape)
        for reading in readings
        for shape in _shapes(fault, reading, evidence)
    ]
    if evidence.scheduled:
        found = [
            each for each in found if is_of_step(each.shape, each.reading, evidence.scheduled)
        ] or found
    return by_plausibility(found, fault, evidence)


def _solution(shape: Shape) -> Solution:
    # A row of one token is by far the most frequent of those that ask for the first step.
    q_len = shape.low if shape.low == 1 else shape.high
    return Solution(shape.heads, shape.batch, q_len, shape.low, shape.high)


# -- what follows ---------------------------------------------------------------------------------


def _workspaces(fault: Fault, kept: list[Reading], evidence: Evidence) -> tuple[int, ...]:
    if evidence.workspace_bytes is not None:
        return (evidence.workspace_bytes,)
    if fault.available is None:
        return ()
    return tuple(dict.fromkeys(each.workspace_bytes(fault.available) for each in kept))


def _call(candidate: Candidate, batch: int) -> Call:
    shape = candidate.shape
    return Call(candidate.reading.entry, shape.heads, batch, shape.low, lse=True)


def _threshold(fault: Fault, candidates: list[Candidate], evidence: Evidence) -> int | None:
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


def _lowest_thresholds(
    fault: Fault, candidates: list[Candidate], evidence: Evidence
) -> dict[int, int]:
    """By heads, rows of which no call of the likeliest reading is refused, if its size is fixed."""
    first = candidates[0].reading
    if first.site is None or first.site.size != "fixed":
        return {}
    lowest: dict[int, int] = {}
    for each in candidates:
        found = _threshold(fault, [each], evidence) if each.reading.key == first.key else None
        if found is not None:
            heads = each.shape.heads
            lowest[heads] = min(found, lowest.get(heads, found))
    return lowest


def _planned(fault: Fault, candidates: list[Candidate], evidence: Evidence) -> dict[int, int]:
    """By heads, the slab of the worst step that the flags allow; at least that of the call."""
    worst: dict[int, int] = {}
    for each in candidates:
        call, heads = _worst_call(each, evidence), each.shape.heads
        size = slab_bytes("padded_stats", call, each.reading.layout) if call else 0
        worst[heads] = max(size, worst.get(heads, fault.size or 0))
    return worst


def _worst_call(candidate: Candidate, evidence: Evidence) -> Call | None:
    """The largest call of the worst step that the flags allow; None where they do not tell."""
    reading, shape = candidate
    rows = planned_rows(reading, evidence)
    if rows is None or not 0 < rows <= MOST_BATCH or reading.rule != "padded_stats":
        return None
    if reading.site is None or reading.site.batch == "tokens":
        # Each row is rounded up: rows of one token are the largest slab of so many tokens.
        return _call(candidate, max(rows, shape.batch))._replace(q_len=1)
    return _call(candidate, max(rows, shape.batch))
