"""Solves the slabs that trtllm-gen's launcher carves: which calls ask for exactly these bytes.

The formulas are `sizing`'s: the padded stats slab is `8 * heads * batch * round_up(q_len, 256)` and
a guard, layout A's `8 * heads * sum_q`, the counter the same whatever the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ws_guard.engines.releases import ENGINES
from ws_guard.sizing import (
    DEFAULT_WORKSPACE_BYTES,
    GRID_LIMIT_BATCH,
    NATIVE_SLABS,
    Call,
    Layout,
    overflow_threshold_batch,
)
from ws_guard.sizing.layouts import ALIGNMENT
from ws_guard.sizing.slabs import slab_bytes

from .evidence import Evidence
from .finding import Confidence, Solution
from .limits import MOST_HEADS, MOST_Q_LEN, Shape, kernel_heads, likely_heads, planned_rows, within
from .readings import Reading, engine_readings, generic_readings, known_layouts
from .slab_notes import SET_ASIDE, reading_notes, unsolved
from .wordings import Fault

SLABS = frozenset(NATIVE_SLABS.values())

_STATS_BYTES = 8
_INT32_MAX = (1 << 31) - 1
#: Query heads of one rank, or of a gathered group, the most frequent first.
_COMMON_HEADS = (64, 128, 32, 16, 96, 8, 48, 40, 56, 80, 24, 12, 28, 20, 4, 2, 1)
_MOST_SOLUTIONS = 20_000
_MOST_THRESHOLDS = 64


class Solved(NamedTuple):
    """What a slab's size and the rest leave. `reading` is the most plausible one."""

    layouts: tuple[str, ...]
    workspaces: tuple[int, ...]
    solutions: tuple[Solution, ...]
    threshold: int | None
    need_bytes: int | None
    planned_bytes: int
    confidence: Confidence
    reading: Reading | None
    notes: tuple[str, ...]


class _Candidate(NamedTuple):
    reading: Reading
    shape: Shape


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
        return Solved((), (), (), None, None, fault.size or 0, "unsolved", None, tuple(notes))
    kept = list({each.reading.key: each.reading for each in candidates}.values())
    shapes = list(dict.fromkeys(each.shape for each in candidates))
    workspaces = _workspaces(fault, kept, evidence)
    one_shape = len(shapes) == 1 and shapes[0].low == shapes[0].high
    one_layout = len({each.layout.name for each in kept}) == 1
    certain = not evidence.doubts and SET_ASIDE not in notes and _could_refuse(fault)
    exact = told and one_layout and one_shape and len(workspaces) == 1 and certain
    notes += reading_notes(fault, kept, evidence, exact)
    if len(shapes) > _MOST_SOLUTIONS:
        notes.append(f"{len(shapes):,} calls ask for these bytes: the likeliest are listed")
    return Solved(
        layouts=tuple(dict.fromkeys(each.layout.name for each in kept)),
        workspaces=workspaces,
        solutions=tuple(map(_solution, shapes[:_MOST_SOLUTIONS])),
        threshold=_threshold(fault, candidates, limits),
        need_bytes=max(each.carved for each in kept) + (fault.size or 0),
        planned_bytes=_planned_bytes(fault, candidates, limits),
        confidence="exact" if exact else "consistent",
        reading=candidates[0].reading,
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
        return Solved((), (), (), None, None, fault.size or 0, "unsolved", None, (*notes, text))
    notes.append(
        "the counter slab is 8192 * 256 * 4 bytes whatever the call: the workspace is smaller than "
        "that, or what was handed over is not the workspace"
    )
    # It is carved first: what is available is the workspace.
    sizes = () if fault.available is None else (fault.available,)
    return Solved(with_counter, sizes, (), None, fault.size, 0, "consistent", None, tuple(notes))


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
    per_token = reading.rule == "stats_per_token"
    for heads, units in _heads_and_units(fault.size, reading, kernel_heads(reading, evidence)):
        for shape in _per_token(heads, units) if per_token else _padded(heads, units, reading):
            if kept := within(shape, reading, evidence):
                yield kept


def _heads_and_units(
    size: int, reading: Reading, known: set[int] | None
) -> Iterator[tuple[int, int]]:
    """(heads, the rest of the product): sum of tokens, or rows times steps of 256 tokens."""
    per_token = reading.rule == "stats_per_token"
    rounding = 1 if per_token else reading.layout.q_rounding
    guard = 0 if per_token else reading.layout.guard_bytes
    product, rest = divmod(size - guard, _STATS_BYTES * rounding)
    if rest or product <= 0:
        return
    for heads in sorted(known) if known is not None else range(1, MOST_HEADS + 1):
        if product % heads == 0:
            yield heads, product // heads


def _padded(heads: int, units: int, reading: Reading) -> Iterator[Shape]:
    rounding = reading.layout.q_rounding
    for steps in range(1, min(units, MOST_Q_LEN // rounding) + 1):
        if units % steps == 0 and units // steps <= _INT32_MAX:
            yield Shape(heads, units // steps, (steps - 1) * rounding + 1, steps * rounding)


def _per_token(heads: int, tokens: int) -> Iterator[Shape]:
    """Rows of one length; rows of several lengths ask the same for the same tokens."""
    if tokens > _INT32_MAX:
        return
    root = min(int(tokens**0.5) + 1, MOST_Q_LEN)
    for part in range(1, root + 1):
        if tokens % part == 0:
            for q_len in {part, tokens // part}:
                if q_len <= MOST_Q_LEN and tokens // q_len <= _INT32_MAX:
                    yield Shape(heads, tokens // q_len, q_len, q_len)


def _ranked(fault: Fault, readings: list[Reading], evidence: Evidence) -> list[_Candidate]:
    """Candidates, the most plausible first."""
    if evidence.batch is not None and evidence.kernel_heads is not None:
        # A slot tells the call itself: nothing is to be solved.
        q_len = evidence.q_len or 1
        told = Shape(evidence.kernel_heads, evidence.batch, q_len, q_len)
        return [_Candidate(reading, told) for reading in readings]
    likely = likely_heads(evidence)
    known = _known_sizes(evidence)

    def plausibility(candidate: _Candidate) -> tuple[object, ...]:
        reading, shape = candidate
        size = None if fault.available is None else reading.workspace_bytes(fault.available)
        common = shape.heads in _COMMON_HEADS
        order = _COMMON_HEADS.index(shape.heads) if common else MOST_HEADS + shape.heads
        return (
            reading.rule == "stats_per_token",
            shape.batch > GRID_LIMIT_BATCH,
            bool(likely) and shape.heads not in likely,
            shape.low > 1,
            size not in known,
            order,
            shape.low,
            ("decode", "ragged", "context", "dsv4").index(reading.entry),
            reading.layout.name != "C",
        )

    found = [
        _Candidate(reading, shape)
        for reading in readings
        for shape in _shapes(fault, reading, evidence)
    ]
    return sorted(found, key=plausibility)


def _known_sizes(evidence: Evidence) -> set[int | None]:
    """Sizes that engines give their workspaces, and what the log says was set."""
    sizes: set[int | None] = {evidence.env_bytes, evidence.workspace_bytes} - {None}
    for engine in ENGINES.values():
        for site in engine.sites:
            sizes |= {site.size_bytes, site.lse_size_bytes or site.size_bytes}
    return sizes


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


def _call(candidate: _Candidate, batch: int) -> Call:
    shape = candidate.shape
    return Call(candidate.reading.entry, shape.heads, batch, shape.low, lse=True)


def _threshold(fault: Fault, candidates: list[_Candidate], evidence: Evidence) -> int | None:
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


def _planned_bytes(fault: Fault, candidates: list[_Candidate], evidence: Evidence) -> int:
    """The slab of the worst step that the flags allow, where heads and rows are known."""
    size = fault.size or 0
    heads = {each.shape.heads for each in candidates}
    if len(heads) > 1 and not evidence.doubts:
        return size
    # Of a log that tells several values, the worst that they lead to.
    return max(size, *(_worst_bytes(each, evidence) for each in candidates[:_MOST_THRESHOLDS]))


def _worst_bytes(candidate: _Candidate, evidence: Evidence) -> int:
    rows = planned_rows(candidate.reading, evidence)
    if rows is None or not 0 < rows <= _INT32_MAX or candidate.reading.rule != "padded_stats":
        return 0
    worst = _call(candidate, max(rows, candidate.shape.batch))
    return slab_bytes("padded_stats", worst, candidate.reading.layout)


def base_bytes(reading: Reading | None, evidence: Evidence) -> int:
    """What the engine gives the site without a slab: a recommendation keeps it."""
    site = reading.site if reading else None
    if site is None or site.size == "fixed":
        return DEFAULT_WORKSPACE_BYTES
    times = (evidence.parallel("dcp") or 1) if site.size == "env_x_dcp" else 1
    return site.size_bytes * times
