"""What is said beside a slab's solution: sizes of the workspace, and what the log lacks."""

from __future__ import annotations

from ws_guard.sizing import Layout
from ws_guard.sizing.layouts import MIB

from .evidence import Evidence
from .lacking import lacking
from .readings import Reading
from .wordings import Fault

SET_ASIDE = (
    "no call within the flags and heads in the log asks for these bytes: they are of another "
    "process, and were left aside"
)


def unsolved(fault: Fault, layouts: tuple[Layout, ...]) -> str:
    if fault.size is None:
        return "the message gives no size: nothing to solve"
    names = ", ".join(layout.name for layout in layouts)
    return (
        f"no call of layout {names} asks for {fault.size:,} bytes of {fault.slab}: the line was "
        "cut, or this FlashInfer carves in a way that is not known"
    )


def reading_notes(fault: Fault, kept: list[Reading], evidence: Evidence, exact: bool) -> list[str]:
    notes = []
    if fault.available is not None:
        by_size: dict[int, dict[str, None]] = {}
        for each in kept:
            names = by_size.setdefault(each.workspace_bytes(fault.available), {})
            names[f"{each.layout.name} ({each.entry})"] = None
        if len(by_size) > 1:
            notes += [
                f"the workspace had {size:,} B ({size / MIB:.2f} MiB) by {', '.join(names)}"
                for size, names in by_size.items()
            ]
    if evidence.scheduled and not evidence.heads:
        steps = " or ".join(f"{tokens:,}" for tokens in evidence.scheduled)
        notes.append(
            f"the step that failed had {steps} tokens by the scheduler's output in the log"
        )
    if exact:
        return notes
    if evidence.doubts:
        notes.append(f"the log tells several values of {', '.join(evidence.doubts)}")
    missing = [
        name
        for name, known in (
            ("the model's heads", evidence.heads or evidence.kernel_heads),
            ("tp", evidence.parallel("tp")),
            ("dcp", evidence.parallel("dcp")),
            ("the tokens of a step", evidence.tokens),
        )
        if not known and evidence.batch is None
    ]
    if len({each.layout.name for each in kept}) > 1:
        missing.append("FlashInfer's version or the line of allocator.h")
    return [*notes, *lacking(missing)]
