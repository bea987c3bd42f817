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

from ws_guard.sizing import InputError
from ws_guard.sizing.layouts import ALIGNMENT
from ws_guard.sizing.releases import parse_release
from ws_guard.sizing.slabs import round_up

from .evidence import Evidence
from .finding import Confidence, Solution
from .wordings import Fault

_FLOAT_BYTES = 4


class Formula(NamedTuple):
    """How a span of releases sizes `tmp_v`: element bytes, and whether rows are shared by a group.

    `seen_first` and `seen_last` bound it; between two formulas a build may have either, since git
    had the change before a wheel did.
    """

    name: str
    element_bytes: int
    shared_rows: bool
    seen_first: tuple[int, int, int]
    seen_last: tuple[int, int, int]
    text: str


FORMULAS: tuple[Formula, ...] = (
    Formula("output_rows", 2, False, (0, 0, 0), (0, 1, 99), "heads * tiles * tile * head_dim * 2"),
    Formula("rows", 4, False, (0, 2, 0), (0, 7, 0), "heads * tiles * tile * head_dim * 4"),
    Formula(
        "partial_rows",
        4,
        True,
        (0, 7, 2),
        (99, 0, 0),
        "heads * ceil(tiles * tile / gqa) * head_dim * 4",
    ),
)
#: The first build whose rows are shared, by git: version strings from here on carry either.
_SHARED_IN_GIT = (0, 7, 0)
#: The release whose wheel was first seen with it.
SHARED_ROWS_SINCE = "0.7.2"

PREFILL, DECODE = "batch_prefill_tmp", "batch_decode_tmp"
SLABS = frozenset(f"{plan}_{part}" for plan in (PREFILL, DECODE) for part in "vs")

_COMMON_HEADS = (32, 64, 40, 28, 24, 16, 96, 48, 128, 8, 12, 14, 20, 56, 80, 4, 2, 1)
_COMMON_DIMS = (128, 256, 64, 512, 192, 96, 80)
_COMMON_GROUPS = (1, 2, 4, 5, 6, 7, 8, 12, 16)
_MOST_TILES = 1 << 22
_MOST_SOLUTIONS = 200
#: Of these several values leave the rows open.
_DOUBTS = {"tp", "heads", "flashinfer_version"}
#: SGLang's deterministic mode splits KV every so many tokens and sets its workspace itself.
_DETERMINISTIC_SPLIT = 4096
DETERMINISTIC_BYTES = 2 << 30


class Solved(NamedTuple):
    """What the size leaves. `worst_bytes` is the need of the same model's largest known plan."""

    workspaces: tuple[int, ...]
    solutions: tuple[Solution, ...]
    need_bytes: int | None
    worst_bytes: int | None
    threshold: int | None
    confidence: Confidence
    notes: tuple[str, ...]


class _Rows(NamedTuple):
    """Partial results: rows for each head, by one formula."""

    heads: int
    head_dim: int
    rows: int
    formula: Formula

    @property
    def v_bytes(self) -> int:
        return self.heads * self.rows * self.head_dim * self.formula.element_bytes

    @property
    def s_bytes(self) -> int:
        return self.heads * self.rows * _FLOAT_BYTES

    @property
    def need_bytes(self) -> int:
        """Both, the second aligned behind the first."""
        return round_up(self.v_bytes, ALIGNMENT) + self.s_bytes


def solve_plan(fault: Fault, evidence: Evidence) -> Solved:
    """Every plan that asks for the size of a fault, and what the workspace must be at least."""
    formulas, told = formulas_of(fault, evidence)
    kept = _reads(fault, formulas, evidence)
    if not kept:
        note = f"no plan of FlashInfer asks for {fault.size} bytes of {fault.slab}"
        return Solved((), (), None, None, None, "unsolved", (note,))
    solutions = sorted(
        (each for rows in kept for each in _solutions(rows, fault, evidence)), key=_plausibility
    )
    # Heads and head dimension fix the rows, and with them the need, whatever tiles they are.
    exact = told and len(kept) == 1 and _known(evidence) and not _DOUBTS & set(evidence.doubts)
    needs = {each.need_bytes for each in kept}
    notes = list(_notes(fault, kept, solutions, evidence))
    return Solved(
        workspaces=_workspaces(fault, kept),
        solutions=tuple(solutions[:_MOST_SOLUTIONS]),
        need_bytes=max(needs),
        worst_bytes=_worst(fault, kept, evidence),
        threshold=_threshold(fault, kept, solutions, evidence),
        confidence="exact" if exact else "consistent",
        notes=tuple(notes),
    )


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
        return ((rows,), True) if numbers < _SHARED_IN_GIT else ((rows, shared), False)
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


def _known(evidence: Evidence) -> bool:
    return len(_heads(evidence)) == 1 and len(evidence.head_dim) == 1


def _heads(evidence: Evidence) -> tuple[int, ...]:
    """Query heads of a rank; empty where the log does not tell."""
    tp = evidence.attention_tp or (1 if evidence.heads else None)
    return tuple(dict.fromkeys(-(-heads // tp) for heads in evidence.heads)) if tp else ()


def _kv_heads(evidence: Evidence) -> int | None:
    tp = evidence.attention_tp or 1
    return max(1, evidence.kv_heads[-1] // tp) if evidence.kv_heads else None


def _group(evidence: Evidence, heads: int) -> int | None:
    """Query heads that share a key head."""
    kv_heads = _kv_heads(evidence)
    return heads // kv_heads if kv_heads and heads % kv_heads == 0 else None


# -- rows -----------------------------------------------------------------------------------------


def _reads(fault: Fault, formulas: tuple[Formula, ...], evidence: Evidence) -> list[_Rows]:
    """Heads, dimension and rows that give exactly the size."""
    size = fault.size or 0
    found = []
    for formula in formulas:
        for heads in _heads(evidence) or _COMMON_HEADS:
            for dim in evidence.head_dim or _COMMON_DIMS:
                values = fault.slab.endswith("_v")
                element = dim * formula.element_bytes if values else _FLOAT_BYTES
                rows, rest = divmod(size, heads * element)
                read = _Rows(heads, dim, rows, formula)
                if rows and not rest and any(_tilings(read, fault, evidence)):
                    found.append(read)
    if not fault.slab.endswith("_s") or fault.available is None:
        return found
    # tmp_v stands before it, and workspaces are whole MiB: the dimensions that make one.
    whole = [each for each in found if (each.v_bytes + fault.available) % (1 << 20) == 0]
    return whole or found


def _tilings(read: _Rows, fault: Fault, evidence: Evidence) -> Iterator[tuple[int, int, int]]:
    """(tile, tiles, group) that make the rows; group 0 where it does not matter."""
    if fault.slab.startswith(DECODE):
        yield 1, read.rows, 0
        return
    for tile in _tiles_of(read.head_dim):
        if not read.formula.shared_rows:
            if read.rows % tile == 0 and read.rows // tile <= _MOST_TILES:
                yield tile, read.rows // tile, 0
            continue
        known = _group(evidence, read.heads)
        for group in (known,) if known else _COMMON_GROUPS:
            if read.heads % group == 0:
                tiles = read.rows * group // tile
                # The largest that leads to these rows; fewer tiles may as well.
                if tiles and -(-tiles * tile // group) == read.rows and tiles <= _MOST_TILES:
                    yield tile, tiles, group


def _tiles_of(head_dim: int) -> tuple[int, ...]:
    """What `FA2DetermineCtaTileQ` can choose for a dimension."""
    if head_dim >= 512:
        return (64, 32, 16)
    return (64, 16) if head_dim >= 256 else (128, 64, 16)


def _solutions(read: _Rows, fault: Fault, evidence: Evidence) -> Iterator[Solution]:
    for tile, tiles, group in _tilings(read, fault, evidence):
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
    read: _Rows, tile: int, tiles: int, group: int, evidence: Evidence
) -> tuple[int | None, str | None]:
    """(batch, words) of what leads to a number of tiles; (None, None) where nothing known does."""
    gqa = group or _group(evidence, read.heads)
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


def graph_tiles(batch: int, gqa: int, tile: int) -> int:
    """Tiles that a CUDA graph of `batch` rows of one token plans at least."""
    return -(-batch * gqa // tile) + batch - 1


def _plausibility(solution: Solution) -> tuple[object, ...]:
    heads, dim = solution.num_qo_heads, solution.head_dim
    return (
        # Nearly every number of small tiles is that of some graph: this rule says little.
        solution.rule is None or solution.batch_size is not None,
        _COMMON_HEADS.index(heads) if heads in _COMMON_HEADS else len(_COMMON_HEADS),
        _COMMON_DIMS.index(dim) if dim in _COMMON_DIMS else len(_COMMON_DIMS),
        [formula.text for formula in FORMULAS].index(solution.formula or ""),
        -(solution.tile or 0),
    )


# -- what follows ---------------------------------------------------------------------------------


def _workspaces(fault: Fault, kept: list[_Rows]) -> tuple[int, ...]:
    if fault.available is None:
        return ()
    if fault.slab.endswith("_v"):
        return (fault.available,)
    before = (round_up(each.v_bytes, ALIGNMENT) for each in kept)
    return tuple(dict.fromkeys(each + fault.available for each in before))


def _worst(fault: Fault, kept: list[_Rows], evidence: Evidence) -> int | None:
    """What splitting KV over all SMs needs at most, where GPU and model are known (eager plans)."""
    kv_heads = _kv_heads(evidence)
    if not evidence.sm_count or not kv_heads or len(kept) != 1 or not _known(evidence):
        return None
    read, group = kept[0], _group(evidence, kept[0].heads)
    tiles = 2 * evidence.sm_count // kv_heads
    tile = _tiles_of(read.head_dim)[0] if fault.slab.startswith(PREFILL) else 1
    rows = tiles * tile
    if read.formula.shared_rows and group:
        rows = -(-rows // group)
    return read._replace(rows=max(rows, read.rows)).need_bytes


def _threshold(
    fault: Fault, kept: list[_Rows], solutions: list[Solution], evidence: Evidence
) -> int | None:
    """The largest batch whose CUDA graph fits, where the size is that of one."""
    graphs = [each for each in solutions if each.batch_size is not None]
    if len(kept) != 1 or not graphs or len(graphs) < len(solutions):
        return None
    workspace, read = _workspaces(fault, kept), kept[0]
    gqa = _group(evidence, read.heads)
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


def _notes(
    fault: Fault, kept: list[_Rows], solutions: list[Solution], evidence: Evidence
) -> Iterator[str]:
    first = kept[0]
    behind = {each.s_bytes for each in kept}
    if fault.slab.endswith("_v"):
        sizes = " or ".join(f"{size:,}" for size in sorted(behind, reverse=True)[:4])
        yield f"{fault.slab[:-1]}s comes next in the same workspace and asks for {sizes} bytes"
    else:
        yield f"{fault.slab[:-1]}v stands before it with {first.v_bytes:,} bytes"
    if solutions and solutions[0].rule:
        yield f"{solutions[0].tiles:,} tiles of {solutions[0].tile} rows: {solutions[0].rule}"
    group = _group(evidence, first.heads)
    if len(kept) == 1 and not first.formula.shared_rows and group and group > 1:
        shared = first._replace(rows=-(-first.rows // group), formula=FORMULAS[-1])
        yield (
            f"FlashInfer from {SHARED_ROWS_SINCE} on reserves {shared.need_bytes:,} bytes for the "
            "same plan (rows shared by a group of query heads)"
        )
    if len({each.formula for each in kept}) > 1:
        yield "which formula sized it depends on FlashInfer's version, which is not in the log"
    missing = [
        name
        for name, known in (
            ("the model's heads", _heads(evidence)),
            ("its head dimension", evidence.head_dim),
        )
        if not known
    ]
    if missing:
        yield f"not in the log: {', '.join(missing)}: the largest need of those possible is told"
    yield from _deterministic(fault, kept, evidence)


def _deterministic(fault: Fault, kept: list[_Rows], evidence: Evidence) -> Iterator[str]:
    """SGLang's deterministic mode: how long a prompt may be under its fixed splits."""
    if not evidence.deterministic or fault.available != DETERMINISTIC_BYTES:
        return
    yield (
        "deterministic inference sets the workspace to 2,147,483,648 bytes itself: the variable is "
        "overwritten"
    )
    read, group = kept[0], _group(evidence, kept[0].heads)
    if len(kept) == 1 and group and not read.formula.shared_rows:
        yield (
            f"with splits of {_DETERMINISTIC_SPLIT:,} tokens prompts of up to "
            f"{_longest_prompt(read, group):,} tokens fit"
        )


def _longest_prompt(read: _Rows, group: int) -> int:
    tile = _tiles_of(read.head_dim)[0]
    low, high = 0, 1 << 22
    while low < high:
        middle = (low + high + 1) // 2
        tiles = -(-middle * group // tile) * -(-middle // _DETERMINISTIC_SPLIT)
        if read._replace(rows=tiles * tile).need_bytes <= DETERMINISTIC_BYTES:
            low = middle
        else:
            high = middle - 1
    return low
