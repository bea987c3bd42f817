"""From a fault and what is known beside it to a finding: solved, and what to set."""

from __future__ import annotations

from collections.abc import Iterable

from . import counters, memory, plan_formulas, plans, slabs
from .advice import Advice, advise_plan, advise_slab
from .evidence import Evidence
from .finding import THIS_CALL_ALONE, Finding
from .wordings import Fault

#: No GPU has as much memory; a plan that asks for more was made from garbage.
ABSURD_BYTES = 1 << 40
#: Partial results of plans whose formula is not here (`attention/scheduler.cuh` of 0.6.14); all
#: else that a plan allocates are its indices.
_FLOAT_SLABS = frozenset(
    f"{plan}_partial_{part}" for plan in ("holistic", "mla") for part in ("o", "lse")
)
_GARBAGE = (
    "a plan made from garbage asks for anything, too: check the indptr it was given, and take a "
    "newer FlashInfer, which checks it and tells the size"
)


def finding_of(fault: Fault, ranks: Iterable[str], evidence: Evidence) -> Finding:
    """One fault, explained."""
    blank = Finding(
        kind=fault.kind,
        ranks=tuple(ranks),
        slab=fault.slab or "?",
        size=fault.size,
        available=fault.available,
        layouts=(),
        workspace_bytes=(),
        solutions=(),
        overflow_threshold_batch=None,
        need_bytes=None,
        recommended_workspace_bytes=None,
        env={},
        set=(),
        confidence="unsolved",
        notes=(),
    )
    found = _solved(fault, blank, evidence)
    return found._replace(notes=(*found.notes, *_common_notes(found, evidence)))


def _solved(fault: Fault, blank: Finding, evidence: Evidence) -> Finding:
    if fault.kind == "counter":
        solutions, sure, notes = counters.solve_counter(fault, evidence)
        told = blank._replace(solutions=solutions, confidence=sure, layouts=("C",))
        return told._replace(notes=(*notes, *_counter_notes(fault)))
    if fault.kind in ("out_of_memory", "locked"):
        return _without_room(fault, blank, evidence)
    return _overflow(fault, blank, evidence)


def _without_room(fault: Fault, blank: Finding, evidence: Evidence) -> Finding:
    """A workspace that was never there."""
    size = memory.known_size(fault.size, evidence) or fault.size
    if fault.kind == "locked":
        sure, flags, notes = memory.locked(fault, evidence)
    else:
        sure, flags, notes = memory.out_of_memory(fault, evidence)
        blank = blank._replace(workspace_bytes=() if size is None else (size,))
    told = blank._replace(size=size, need_bytes=size, confidence=sure)
    return told._replace(set=tuple(flags), notes=tuple(notes))


def _overflow(fault: Fault, blank: Finding, evidence: Evidence) -> Finding:
    if fault.size is None:
        return blank._replace(
            notes=(
                "FlashInfer of July 2024 and before names neither slab nor size: nothing to solve",
                _GARBAGE,
            )
        )
    if fault.size > ABSURD_BYTES:
        note = f"{fault.size:,} bytes are more than any GPU has: the plan was given wrong lengths"
        return blank._replace(notes=(note, "no workspace is large enough: check the indptr arrays"))
    if fault.slab in slabs.SLABS:
        return _slab(fault, blank, evidence)
    if fault.slab in plan_formulas.SLABS:
        return _plan(fault, blank, evidence)
    return _unknown_slab(fault, blank)


def _slab(fault: Fault, blank: Finding, evidence: Evidence) -> Finding:
    solved = slabs.solve_slab(fault, evidence)
    found = _told(blank, solved)._replace(layouts=solved.layouts)
    if solved.need_bytes is None:
        return found
    advice = advise_slab(solved, solved.need_bytes, evidence)
    found = _advised(found, advice)
    by_plan = advice.workspace_bytes == evidence.recommended_bytes
    by_size = bool(advice.env) or not advice.typed
    if by_size and not by_plan and not solved.bounded:
        return found._replace(notes=(*found.notes, THIS_CALL_ALONE))
    return found


def _told(blank: Finding, solved: slabs.Solved | plans.Solved) -> Finding:
    return blank._replace(
        workspace_bytes=solved.workspaces,
        solutions=solved.solutions,
        overflow_threshold_batch=solved.threshold,
        need_bytes=solved.need_bytes,
        confidence=solved.confidence,
        notes=solved.notes,
    )


def _advised(found: Finding, advice: Advice) -> Finding:
    return found._replace(
        recommended_workspace_bytes=advice.workspace_bytes,
        env=advice.env,
        set=advice.typed,
        notes=(*found.notes, *advice.notes),
    )


def _plan(fault: Fault, blank: Finding, evidence: Evidence) -> Finding:
    solved = plans.solve_plan(fault, evidence)
    found = _told(blank, solved)
    if solved.need_bytes is None:
        return found
    return _advised(found, advise_plan(fault, solved.need_bytes, solved.worst_bytes, evidence))


def _unknown_slab(fault: Fault, blank: Finding) -> Finding:
    notes = [f"the formula of {fault.slab} is not known here"]
    if fault.available is not None and fault.size is not None:
        short = fault.size - fault.available
        notes.append(f"the workspace is short by {short:,} bytes at least; more slabs may follow")
    if fault.slab in _FLOAT_SLABS:
        notes.append("it stands in the wrapper's float workspace")
    elif fault.slab.startswith(("batch_prefill_", "batch_decode_", "mla_")):
        notes.append(
            "it stands in the wrapper's integer workspace (8 MiB unless given), which no variable "
            "of an engine changes"
        )
    return blank._replace(notes=tuple(notes))


def _counter_notes(fault: Fault) -> list[str]:
    if fault.size is None:
        return ["FlashInfer allocates a fitting counter itself where the caller passes none"]
    return [f"the caller must pass a zeroed counter of {fault.size:,} bytes, or none at all"]


def _common_notes(found: Finding, evidence: Evidence) -> list[str]:
    notes = list(evidence.notes)
    env = evidence.env_bytes
    if env is not None and found.workspace_bytes and env not in found.workspace_bytes:
        notes.append(
            f"the log sets {env:,} bytes, but the workspace had another size: it was overridden"
        )
    return notes
