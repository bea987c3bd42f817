"""Solves the partial results of FlashInfer's own plans (FA2): `batch_prefill_tmp_v` and the like.

Source: `PrefillPlan`, `PrefillSplitQOKVIndptr` and `DecodePlan` of `attention/scheduler.cuh` in the
wheels 0.6.14 to 0.7.4, `FA2DetermineCtaTileQ` of `utils.cuh`; 0.1.6 by its public history. A plan
that splits KV keeps, for each head, `tiles` tiles of `tile` rows of partial output:

    tmp_v = heads * tiles * tile * head_dim * 2         0.1.x, in the type of the output
    tmp_v = heads * tiles * tile * head_dim * 4         0.2.0 to 0.7.0
    tmp_v = heads * ceil(tiles * tile / gqa) * head_dim * 4    where the header has max_partial_rows
    tmp_s = heads * (the same rows) * 4                 behind it, in the same workspace

`tiles` is, under CUDA graphs, the larger of `2 * sm_count / kv_heads` and
`ceil(rows * gqa / tile) + batch - 1`; otherwise what the lengths of the batch lead to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ws_guard.sizing.layouts import ALIGNMENT
from ws_guard.sizing.slabs import round_up

from .evidence import Evidence
from .finding import Confidence, Solution
from .plan_formulas import FORMULAS, PREFILL, formulas_of
from .plan_notes import notes_on
from .plan_rows import (
    COMMON_DIMS,
    COMMON_HEADS,
    Rows,
    graph_tiles,
    query_group,
    rank_heads,
    rank_kv_heads,
    rows_of,
    tiles_of,
    tilings,
)
from .wordings import Fault

_MOST_SOLUTIONS = 1_000
#: Of these several values leave the rows open.
_DOUBTS = {"tp", "heads", "flashinfer_version"}


class Solved(NamedTuple):
    """What the size leaves. `worst_bytes` is the need of the same model's largest known plan."""

    workspaces: tuple[int, ...]
    solutions: tuple[Solution, ...]
    need_bytes: int | None
    worst_bytes: int | None
    threshold: int | None
    confidence: Confidence
    notes: tuple[str, ...]


def solve_plan(fault: Fault, evidence: Evidence) -> Solved:
    """Every plan that asks for the size of a fault, and what the workspace must be at least."""
    formulas, told = formulas_of(fault, evidence)
    kept = rows_of(fault, formulas, evidence)
    if not kept:
        note = f"no plan of FlashInfer asks for {fault.size} bytes of {fault.slab}"
        return Solved((), (), None, None, None, "unsolved", (note,))
    solutions = sorted(
        (each for rows in kept for each in _solutions(rows, fault, evidence)), key=_plausibility
    )
    # Heads and head dimension fix the rows, and with them the need, whatever tiles they are.
    exact = told and len(kept) == 1 and _known(evidence) and not _DOUBTS & set(evidence.doubts)
    needs = {each.need_bytes for each in kept}
    return Solved(
        workspaces=_workspaces(fault, kept),
        solutions=tuple(solutions[:_MOST_SOLUTIONS]),
        need_bytes=max(needs),
        worst_bytes=_worst(fault, kept, evidence),
        threshold=_threshold(fault, kept, solutions, evidence),
        confidence="exact" if exact else "consistent",
        notes=tuple(notes_on(fault, kept, solutions, evidence)),
    )


def _known(evidence: Evidence) -> bool:
    return len(rank_heads(evidence)) == 1 and len(evidence.head_dim) == 1


def _solutions(read: Rows, fault: Fault, evidence: Evidence) -> Iterator[Solution]:
    for tile, tiles, group in tilings(read, fault, evidence):
        batch, rule = _rule(read, tile, tiles, group, evidence)
        yield Solution(
            num_qo_heads=read.heads,
            batch_size=batch,
            head_dim=read.head_dim,
            rows=read.rows,
            tile=tile,
            tiles=tiles,
            formula=read.formula.text,
            rule=rule,
        )


def _rule(
    read: Rows, tile: int, tiles: int, group: int, evidence: Evidence
) -> tuple[int | None, str | None]:
    """(batch, words) of what leads to a number of tiles; (None, None) where nothing known does."""
    gqa = group or query_group(evidence, read.heads)
    kv_heads = read.heads // gqa if gqa else None
    most = 2 * evidence.sm_count // kv_heads if kv_heads and evidence.sm_count else 0
    if 0 < tiles <= most:
        of = "" if tiles == most else f" of {most:,} at most"
        return None, f"KV split over all SMs{of}: 2 * {evidence.sm_count} / {kv_heads} KV heads"
    if gqa and tile == 16 and (batch := _graph_batch(tiles, gqa, tile)):
        return batch, f"a CUDA graph of {batch:,} rows of one token"
    if gqa and evidence.tokens:
        step = -(-evidence.tokens * gqa // tile)
        if tiles % step == 0:
            splits = tiles // step
            return None, f"{evidence.tokens:,} tokens in {step:,} tiles, KV split {splits:,} times"
        if step < tiles <= step + (evidence.seqs or step):
            return (
                None,
                f"{evidence.tokens:,} tokens in {step:,} tiles, {tiles - step:,} ragged ones",
            )
    return None, None


def _graph_batch(tiles: int, gqa: int, tile: int) -> int | None:
    """The batch whose CUDA graph plans so many tiles: `ceil(batch * gqa / tile) + batch - 1`."""
    low, high = 1, tiles + 1
    while low < high:
        middle = (low + high) // 2
        if graph_tiles(middle, gqa, tile) < tiles:
            low = middle + 1
        else:
            high = middle
    return low if graph_tiles(low, gqa, tile) == tiles else None


def _plausibility(solution: Solution) -> tuple[object, ...]:
    heads, dim = solution.num_qo_heads, solution.head_dim
    return (
        # Nearly every number of small tiles is that of some graph: this rule says little.
        solution.rule is None or solution.batch_size is not None,
        COMMON_HEADS.index(heads) if heads in COMMON_HEADS else len(COMMON_HEADS),
        COMMON_DIMS.index(dim) if dim in COMMON_DIMS else len(COMMON_DIMS),
        [formula.text for formula in FORMULAS].index(solution.formula or ""),
        -(solution.tile or 0),
    )


# -- what follows ---------------------------------------------------------------------------------


def _workspaces(fault: Fault, kept: list[Rows]) -> tuple[int, ...]:
    if fault.available is None:
        return ()
    if fault.slab.endswith("_v"):
        return (fault.available,)
    before = (round_up(each.v_bytes, ALIGNMENT) for each in kept)
    return tuple(dict.fromkeys(each + fault.available for each in before))


def _worst(fault: Fault, kept: list[Rows], evidence: Evidence) -> int | None:
    """What splitting KV over all SMs needs at most, where GPU and model are known (eager plans)."""
    kv_heads = rank_kv_heads(evidence)
    if not evidence.sm_count or not kv_heads or len(kept) != 1 or not _known(evidence):
        return None
    read, group = kept[0], query_group(evidence, kept[0].heads)
    tiles = 2 * evidence.sm_count // kv_heads
    tile = tiles_of(read.head_dim)[0] if fault.slab.startswith(PREFILL) else 1
    rows = tiles * tile
    if read.formula.shared_rows and group:
        rows = -(-rows // group)
    return read._replace(rows=max(rows, read.rows)).need_bytes


def _threshold(
    fault: Fault, kept: list[Rows], solutions: list[Solution], evidence: Evidence
) -> int | None:
    """The largest batch whose CUDA graph fits, where the size is that of one."""
    graphs = [each for each in solutions if each.batch_size is not None]
    if len(kept) != 1 or not graphs or len(graphs) < len(solutions):
        return None
    workspace, read = _workspaces(fault, kept), kept[0]
    gqa = query_group(evidence, read.heads)
    if len(workspace) != 1 or not gqa:
        return None
    low, high = 0, graphs[0].batch_size or 0
    while low < high:
        middle = (low + high + 1) // 2
        rows = graph_tiles(middle, gqa, 16) * 16
        rows = -(-rows // gqa) if read.formula.shared_rows else rows
        if read._replace(rows=rows).need_bytes <= workspace[0]:
            low = middle
        else:
            high = middle - 1
    return low
