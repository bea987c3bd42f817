"""Solves the slabs that trtllm-gen's launcher carves: which calls ask for exactly these bytes.

The formulas are `sizing`'s: the padded stats slab is `8 * heads * batch * round_up(q_len, 256)` and
a guard, layout A's `8 * heads * sum_q`, the counter the same whatever the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ws_guard.engines.sites import Site
from ws_guard.sizing import NATIVE_SLABS, Layout
from ws_guard.sizing.layouts import ALIGNMENT

from .evidence import Evidence
from .finding import Confidence, Solution
from .limits import is_of_step, possible_heads, within
from .plausibility import Candidate, by_plausibility, credible
from .readings import (
    Reading,
    engine_readings,
    fixed_sites,
    generic_readings,
    known_layouts,
)
from .shapes import Shape, each_once, shapes_of
from .slab_notes import SET_ASIDE, reading_notes, unsolved
from .steps import lowest_thresholds, planned_slabs, threshold_of, worst_call
from .wordings import Fault

SLABS = frozenset(NATIVE_SLABS.values())

_MOST_SOLUTIONS = 20_000


class Solved(NamedTuple):
    """What a slab's size and the rest leave. `readings`: the most plausible one first.

    `planned` has, by heads that may well be, bytes of the slab in the worst step that the flags
    allow, and `lowest_thresholds` rows that fit the first reading's workspace. `bounded`: no step
    asks for more than `planned`. `fixed_sites`: by engine what no variable of it changes.
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
    fixed_sites: dict[str, Site] = {}  # noqa: RUF012 - a tuple's default, which nobody changes


def solve_slab(fault: Fault, evidence: Evidence) -> Solved:
    """Every call that asks for the slab of a fault, by every layout that can be."""
    layouts, told, notes = known_layouts(fault, evidence)
    if fault.slab == NATIVE_SLABS["counter"]:
        return _counter(fault, layouts, notes)
    candidates, limits = _ranked(fault, layouts, evidence), evidence
    if not candidates and evidence.layout is None:
        # Flags of another process, or words that were no flags: not all of it can be true.
        limits = evidence.unlimited()
        candidates = _ranked(fault, layouts, limits)
        notes += [SET_ASIDE] if candidates else []
    if not candidates:
        return _without_call([*notes, unsolved(fault, layouts)])
    readings = tuple({each.reading.key: each.reading for each in candidates}.values())
    shapes = each_once(each.shape for each in _steps_first(candidates, limits))
    workspaces = _workspaces(fault, readings, evidence)
    certain = told and limits is evidence and not evidence.doubts and _could_refuse(fault)
    exact = certain and len(workspaces) == 1 and _is_one_call(readings, shapes)
    batches = {each.batch for each in shapes}
    notes += reading_notes(fault, readings, batches, evidence, exact)
    if len(shapes) > _MOST_SOLUTIONS:
        notes.append(f"{len(shapes):,} calls ask for these bytes: the likeliest are listed")
    likely = credible(candidates, evidence)
    return Solved(
        layouts=tuple(dict.fromkeys(each.layout.name for each in readings)),
        workspaces=workspaces,
        solutions=tuple(map(_solution, shapes[:_MOST_SOLUTIONS])),
        threshold=threshold_of(fault, candidates, limits),
        need_bytes=max(each.carved for each in readings) + (fault.size or 0),
        planned=planned_slabs(fault, likely, limits),
        lowest_thresholds=lowest_thresholds(fault, likely, limits),
        bounded=all(worst_call(each, limits) for each in likely),
        confidence="exact" if exact else "consistent",
        readings=readings,
        notes=tuple(notes),
        fixed_sites=fixed_sites(fault.slab, layouts, fault.available, limits),
    )


def _is_one_call(readings: Sequence[Reading], shapes: Sequence[Shape]) -> bool:
    one_layout = len({each.layout.name for each in readings}) == 1
    return one_layout and len(shapes) == 1 and shapes[0].low == shapes[0].high


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
        layouts=with_counter,
        workspaces=sizes,
        need_bytes=fault.size,
        bounded=True,
        confidence="consistent",
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


def _ranked(fault: Fault, layouts: tuple[Layout, ...], evidence: Evidence) -> list[Candidate]:
    """Calls that can be, by every layout; the most plausible first."""
    readings = _readings(fault, layouts, evidence)
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
    if evidence.step is not None:
        found = [
            each for each in found if is_of_step(each.shape, each.reading, (evidence.step,))
        ] or found
    return by_plausibility(found, fault, evidence)


def _steps_first(candidates: list[Candidate], evidence: Evidence) -> list[Candidate]:
    """Calls of steps that failed before others: where they may be of another failure no more."""
    if not evidence.scheduled or evidence.step is not None:
        return candidates
    steps = evidence.scheduled
    return sorted(candidates, key=lambda each: not is_of_step(each.shape, each.reading, steps))


def _solution(shape: Shape) -> Solution:
    # A row of one token is by far the most frequent of those that ask for the first step.
    q_len = shape.low if shape.low == 1 else shape.high
    return Solution(shape.heads, shape.batch, q_len, shape.low, shape.high)


# -- what follows ---------------------------------------------------------------------------------


def _workspaces(fault: Fault, kept: Sequence[Reading], evidence: Evidence) -> tuple[int, ...]:
    if evidence.workspace_bytes is not None:
        return (evidence.workspace_bytes,)
    if fault.available is None:
        return ()
    return tuple(dict.fromkeys(each.workspace_bytes(fault.available) for each in kept))
