"""What is said beside a plan's solution: its neighbour, newer formulas, what the log lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .evidence import Evidence
from .finding import Solution
from .lacking import lacking
from .plan_formulas import FORMULAS, SHARED_ROWS_SINCE
from .plan_rows import Rows, query_group, rank_heads, tiles_of
from .wordings import Fault

#: SGLang's deterministic mode splits KV every so many tokens and sets its workspace itself.
_DETERMINISTIC_SPLIT = 4096
DETERMINISTIC_BYTES = 2 << 30
_MOST_SIZES = 4


def notes_on(
    fault: Fault, kept: Sequence[Rows], solutions: Sequence[Solution], evidence: Evidence
) -> Iterator[str]:
    """Notes on a solved plan; of the rows that are kept the first is the likeliest."""
    yield _neighbour(fault, kept)
    if solutions and solutions[0].rule:
        yield f"{solutions[0].tiles:,} tiles of {solutions[0].tile} rows: {solutions[0].rule}"
    yield from _shared_rows(kept, evidence)
    if len({each.formula for each in kept}) > 1:
        yield "which formula sized it depends on FlashInfer's version, which is not in the log"
    told = (
        ("the model's heads", rank_heads(evidence)),
        ("its head dimension", evidence.head_dim),
    )
    missing = [name for name, known in told if not known]
    if missing:
        yield "the largest need of those possible is told"
    yield from lacking(missing, evidence)
    yield from _deterministic(fault, kept, evidence)


def _neighbour(fault: Fault, kept: Sequence[Rows]) -> str:
    """The other of `tmp_v` and `tmp_s`, which stand in one workspace."""
    if not fault.slab.endswith("_v"):
        return f"{fault.slab[:-1]}v stands before it with {kept[0].v_bytes:,} bytes"
    behind = sorted({each.s_bytes for each in kept}, reverse=True)
    sizes = " or ".join(f"{size:,}" for size in behind[:_MOST_SIZES])
    return f"{fault.slab[:-1]}s comes next in the same workspace and asks for {sizes} bytes"


def _shared_rows(kept: Sequence[Rows], evidence: Evidence) -> Iterator[str]:
    """What the same plan asks for where a group of query heads shares its rows."""
    first, group = kept[0], query_group(evidence, kept[0].heads)
    if len(kept) == 1 and not first.formula.shared_rows and group and group > 1:
        shared = first._replace(rows=-(-first.rows // group), formula=FORMULAS[-1])
        yield (
            f"FlashInfer from {SHARED_ROWS_SINCE} on reserves {shared.need_bytes:,} bytes for the "
            "same plan (rows shared by a group of query heads)"
        )


def _deterministic(fault: Fault, kept: Sequence[Rows], evidence: Evidence) -> Iterator[str]:
    """SGLang's deterministic mode: how long a prompt may be under its fixed splits."""
    if not evidence.deterministic or fault.available != DETERMINISTIC_BYTES:
        return
    yield (
        "deterministic inference sets the workspace to 2,147,483,648 bytes itself: the variable is "
        "overwritten"
    )
    read, group = kept[0], query_group(evidence, kept[0].heads)
    if len(kept) == 1 and group and not read.formula.shared_rows:
        yield (
            f"with splits of {_DETERMINISTIC_SPLIT:,} tokens prompts of up to "
            f"{_longest_prompt(read, group):,} tokens fit"
        )


def _longest_prompt(read: Rows, group: int) -> int:
    tile = tiles_of(read.head_dim)[0]
    low, high = 0, 1 << 22
    while low < high:
        middle = (low + high + 1) // 2
        tiles = -(-middle * group // tile) * -(-middle // _DETERMINISTIC_SPLIT)
        if read._replace(rows=tiles * tile).need_bytes <= DETERMINISTIC_BYTES:
            low = middle
        else:
            high = middle - 1
    return low
