"""What is said beside a slab's solution: sizes of the workspace, and what the log lacks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ws_guard.sizing import Layout
from ws_guard.sizing.layouts import MIB

from .evidence import Evidence
from .lacking import lacking
from .readings import Reading
from .wordings import Fault

_MOST_STEPS = 3

SET_ASIDE = (
    "no call within the flags and heads in the log asks for these bytes: they are of another "
    "process, and were left aside"
)


def unsolved(fault: Fault, layouts: tuple[Layout, ...]) -> str:
    """Why no call was found."""
    if fault.size is None:
        return "the message gives no size: nothing to solve"
    names = ", ".join(layout.name for layout in layouts)
    return (
        f"no call of layout {names} asks for {fault.size:,} bytes of {fault.slab}: the line was "
        "cut, or this FlashInfer carves in a way that is not known"
    )


def reading_notes(
    fault: Fault,
    readings: Sequence[Reading],
    batches: Collection[int],
    evidence: Evidence,
    exact: bool,
) -> list[str]:
    """What a reader of the solutions must know of them; where they are not exact, why not.

    `batches` are the rows of the calls that may be.
    """
    notes = _sizes(fault, readings)
    if not evidence.heads:
        notes += _steps(readings, batches, evidence)
    if exact:
        return notes
    if evidence.doubts:
        notes.append(f"the log tells several values of {', '.join(evidence.doubts)}")
    return [*notes, *lacking(_missing(readings, evidence), evidence)]


def _steps(readings: Sequence[Reading], batches: Collection[int], evidence: Evidence) -> list[str]:
    """On the step that failed, and on those that may be of other failures."""
    if evidence.step is not None:
        return [f"the step that failed had {evidence.step:,} tokens, as the scheduler put it down"]
    used = [tokens for tokens in evidence.scheduled if tokens in batches]
    if not used or not any(each.site and each.site.batch == "tokens" for each in readings):
        return []
    more = f" and {len(used) - _MOST_STEPS} more" if len(used) > _MOST_STEPS else ""
    steps = ", ".join(f"{tokens:,}" for tokens in used[-_MOST_STEPS:])
    note = f"the log puts down failed steps of {steps}{more} tokens: whether one is of this fault"
    return [f"{note} is not certain, their calls come first"]


def _sizes(fault: Fault, readings: Sequence[Reading]) -> list[str]:
    """The size of the workspace by each reading, where they do not agree."""
    if fault.available is None:
        return []
    by_size: dict[int, dict[str, None]] = {}
    for each in readings:
        names = by_size.setdefault(each.workspace_bytes(fault.available), {})
        names[f"{each.layout.name} ({each.entry})"] = None
    if len(by_size) < 2:
        return []
    return [
        f"the workspace had {size:,} B ({size / MIB:.2f} MiB) by {', '.join(names)}"
        for size, names in by_size.items()
    ]


def _missing(readings: Sequence[Reading], evidence: Evidence) -> list[str]:
    told = (
        ("the model's heads", evidence.heads or evidence.kernel_heads),
        ("tp", evidence.parallel("tp")),
        ("dcp", evidence.parallel("dcp")),
        ("the tokens of a step", evidence.tokens),
    )
    missing = [name for name, known in told if not known and evidence.batch is None]
    if len({each.layout.name for each in readings}) > 1:
        missing.append("FlashInfer's version or the line of allocator.h")
    return missing
