"""How FlashInfer's releases size the partial results of a plan that splits KV, as data.

Source: `PrefillPlan` and `DecodePlan` of `attention/scheduler.cuh` in the wheels 0.6.14,
0.6.18.post1, 0.7.0.post1, 0.7.2.post1 and 0.7.4; before 0.2.0 by public reports.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from ws_guard.sizing import InputError
from ws_guard.sizing.releases import parse_release

from .evidence import Evidence
from .wordings import Fault

PREFILL, DECODE = "batch_prefill_tmp", "batch_decode_tmp"
SLABS = frozenset(f"{plan}_{part}" for plan in (PREFILL, DECODE) for part in "vs")


class Formula(NamedTuple):
    """How a span of releases sizes `tmp_v`: element bytes, and whether rows are shared by a group.

    `seen_first` is where it begins; before the last of them a build may have either, since git had
    the change before a wheel did.
    """

    name: str
    element_bytes: int
    shared_rows: bool
    seen_first: tuple[int, int, int]
    text: str


FORMULAS: tuple[Formula, ...] = (
    Formula("output_rows", 2, False, (0, 0, 0), "heads * tiles * tile * head_dim * 2"),
    Formula("rows", 4, False, (0, 2, 0), "heads * tiles * tile * head_dim * 4"),
    Formula(
        "partial_rows",
        4,
        True,
        (0, 7, 2),
        "heads * ceil(tiles * tile / gqa) * head_dim * 4",
    ),
)
#: The first build whose rows are shared, by git: version strings from here on carry either.
_SHARED_IN_GIT = (0, 7, 0)
#: The release whose wheel was first seen with it.
SHARED_ROWS_SINCE = "0.7.2"
#: What a header with shared rows declares, and where it stands.
_SHARED_ROWS = "max_partial_rows"
_HEADER = "flashinfer/data/include/flashinfer/attention/scheduler.cuh"


def formulas_of(fault: Fault, evidence: Evidence) -> tuple[tuple[Formula, ...], bool]:
    """The formulas that can be, and whether the log tells which."""
    first, rows, shared = FORMULAS
    if fault.slab.startswith(DECODE):
        return (rows,), True
    numbers = _release(evidence)
    if numbers is not None:
        if numbers < rows.seen_first:
            return (first,), True
        if numbers >= shared.seen_first:
            return (shared,), True
        if numbers < _SHARED_IN_GIT:
            return (rows,), True
        installed = _has_shared_rows(evidence.flashinfer or "")
        if installed is not None:
            return ((shared if installed else rows),), True
        return (rows, shared), False
    if fault.old:
        return (first, rows), False
    # Line 49 of allocator.h ends before shared rows begin.
    return ((rows,), True) if fault.line == 49 else ((rows, shared), False)


def _release(evidence: Evidence) -> tuple[int, int, int] | None:
    text = (evidence.flashinfer or "").partition("+")[0]
    try:
        return parse_release(text).numbers if text else None
    except InputError:
        return None


def _has_shared_rows(version: str) -> bool | None:
    """What the header of the FlashInfer installed here says, if it is that very build."""
    try:
        installed = distribution("flashinfer-python")
        if installed.version != version:
            return None
        header = Path(str(installed.locate_file(_HEADER)))
        return _SHARED_ROWS in header.read_text(encoding="utf-8", errors="replace")
    except (PackageNotFoundError, OSError):
        return None
