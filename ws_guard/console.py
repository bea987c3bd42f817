"""What the command line prints: plain text that survives a copy into a ticket, or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .units import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .contract import Contract
    from .sizing import Plan

_BAR_CELLS = 40
_REASONS = {
    "overflow": "the launcher refuses the carve: RuntimeError, the engine dies",
    "overrun": "the carve succeeds but scratch does not fit: what lies behind is overwritten",
    "grid_limit": "the batch cannot launch whatever the workspace",
}


def print_json(value: object) -> None:
    """JSON for programs, indented for people."""
    print(json.dumps(value, indent=2))


def typed_line(typed: str) -> str:
    """`unset: X` for `unset X`, a variable that is better taken away; `set: ...` for the rest."""
    verb, _, name = typed.partition(" ")
    return f"unset: {name}" if verb == "unset" else f"set: {typed}"


def plan_text(plan: Plan) -> str:
    """A plan as a small table: the verdict first, what to set last."""
    lines = [_verdict(plan), "", _bar(plan), ""]
    lines += [
        f"  {name:<22}{value}"
        for name, value in (
            ("workspace", human_bytes(plan.workspace_bytes)),
            ("need (worst step)", human_bytes(plan.need_bytes)),
            ("margin", f"{human_bytes(plan.margin_bytes)}, {plan.margin_ratio:.1%}"),
            ("planned batch", f"{plan.planned_batch:,} rows"),
            ("overflow threshold", _threshold(plan)),
            ("kernel heads", f"{plan.kernel_heads:,}, LSE {'asked' if plan.lse else 'not asked'}"),
            ("layout", plan.layout),
        )
    ]
    lines += [f"    slab {slab:<17}{human_bytes(size)}" for slab, size in plan.slabs.items()]
    if plan.need_bytes > sum(plan.slabs.values()):
        lines.append("    the worst step is a smaller one: few rows write scratch, many write none")
    lines += ["", *(f"  {reason}: {_REASONS[reason]}" for reason in plan.reasons)]
    if plan.overrun_batches:
        low, high = plan.overrun_batches
        lines.append(f"  overrun range: batches {low:,} to {high:,}")
    if not plan.fits:
        lines.append(
            f"  set: workspace {human_bytes(plan.recommended_workspace_bytes)}, "
            f"{human_bytes(plan.extra_bytes_per_gpu)} more per GPU"
        )
    lines += [f"  note: {note}" for note in plan.notes]
    return "\n".join(lines).rstrip()


def _verdict(plan: Plan) -> str:
    if plan.fits:
        return "FITS: no step of this deployment can overflow its workspace"
    return f"DOES NOT FIT ({', '.join(plan.reasons)})"


def _threshold(plan: Plan) -> str:
    if plan.overflow_threshold_batch is None:
        return "none: nothing grows with the batch"
    return f"{plan.overflow_threshold_batch:,} rows"


def _bar(plan: Plan) -> str:
    """The workspace from 0 to the larger of size and need; `|` is where the workspace ends."""
    scale = max(plan.workspace_bytes, plan.need_bytes)
    need = round(_BAR_CELLS * plan.need_bytes / scale)
    end = round(_BAR_CELLS * plan.workspace_bytes / scale)
    cells = "".join("#" if cell < need else "." for cell in range(_BAR_CELLS))
    return f"  [{cells[:end]}|{cells[end:]}]  # need, | workspace end"


def sweep_text(parameter: str, values: Sequence[int], plans: Sequence[Plan]) -> str:
    """Need and threshold over one parameter, a line each."""
    head = f"{parameter:>10}  {'need bytes':>18}  {'margin bytes':>18}  {'threshold':>9}  fits"
    rows = [
        f"{value:>10,}  {plan.need_bytes:>18,}  {plan.margin_bytes:>18,}  "
        f"{_cell(plan.overflow_threshold_batch):>9}  {'yes' if plan.fits else 'no'}"
        for value, plan in zip(values, plans, strict=True)
    ]
    return "\n".join([head, *rows, *_notes(parameter, values, plans)])


def _notes(parameter: str, values: Sequence[int], plans: Sequence[Plan]) -> Iterator[str]:
    """Each note once; one that is not about every value with those that it is about."""
    for note in dict.fromkeys(note for plan in plans for note in plan.notes):
        about = [
            f"{value:,}" for value, plan in zip(values, plans, strict=True) if note in plan.notes
        ]
        where = "" if len(about) == len(plans) else f" ({parameter} {'; '.join(about)})"
        yield f"note{where}: {note}"


def _cell(number: int | None) -> str:
    return "none" if number is None else f"{number:,}"


def contract_text(contract: Contract) -> str:
    """A verdict with the facts that led to it."""
    lines = [f"FlashInfer {contract.release}: {contract.verdict}"]
    if contract.reason:
        lines.append(f"  because {contract.reason}")
    if contract.layout:
        lines.append(f"  layout  {contract.layout.name}")
    lines.append(f"  source  {contract.source}")
    lines += [
        f"  op      {op} ({len(names)} arguments)" for op, names in contract.signatures.items()
    ]
    if contract.verdict == "mismatch":
        lines.append("  the probe stays off with this release; ws_guard needs an update")
    return "\n".join(lines)
