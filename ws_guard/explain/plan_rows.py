"""Rows of partial results: which heads, dimensions and tiles give a size.

Source: `PrefillSplitQOKVIndptr` of `attention/scheduler.cuh` and `FA2DetermineCtaTileQ` of
`utils.cuh`, FlashInfer 0.6.14 to 0.7.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ws_guard.sizing.layouts import ALIGNMENT
from ws_guard.sizing.slabs import round_up

from .evidence import Evidence
from .plan_formulas import DECODE, Formula
from .wordings import Fault

_FLOAT_BYTES = 4
COMMON_HEADS = (32, 64, 40, 28, 24, 16, 96, 48, 128, 8, 12, 14, 20, 56, 80, 4, 2, 1)
COMMON_DIMS = (128, 256, 64, 512, 192, 96, 80)
_COMMON_GROUPS = (1, 2, 4, 5, 6, 7, 8, 12, 16)
_MOST_TILES = 1 << 22


class Rows(NamedTuple):
    """Partial results: rows for each head, by one formula."""

    heads: int
    head_dim: int
    rows: int
    formula: Formula

    @property
    def v_bytes(self) -> int:
        """Bytes of `tmp_v`: the partial outputs."""
        return self.heads * self.rows * self.head_dim * self.formula.element_bytes

    @property
    def s_bytes(self) -> int:
        """Bytes of `tmp_s`: a float for each row of each head."""
        return self.heads * self.rows * _FLOAT_BYTES

    @property
    def need_bytes(self) -> int:
        """Both, the second aligned behind the first."""
        return round_up(self.v_bytes, ALIGNMENT) + self.s_bytes


def rank_heads(evidence: Evidence) -> tuple[int, ...]:
    """Query heads of a rank; empty where the log does not tell."""
    tp = evidence.attention_tp or (1 if evidence.heads else None)
    return tuple(dict.fromkeys(-(-heads // tp) for heads in evidence.heads)) if tp else ()


def rank_kv_heads(evidence: Evidence) -> int | None:
    """Key heads of a rank; None where the log does not tell."""
    tp = evidence.attention_tp or 1
    return max(1, evidence.kv_heads[-1] // tp) if evidence.kv_heads else None


def query_group(evidence: Evidence, heads: int) -> int | None:
    """Query heads that share a key head."""
    kv_heads = rank_kv_heads(evidence)
    return heads // kv_heads if kv_heads and heads % kv_heads == 0 else None


def rows_of(fault: Fault, formulas: tuple[Formula, ...], evidence: Evidence) -> list[Rows]:
    """Heads, dimension and rows that give exactly the size."""
    size = fault.size or 0
    found = []
    for formula in formulas:
        for heads in rank_heads(evidence) or COMMON_HEADS:
            for dim in evidence.head_dim or COMMON_DIMS:
                values = fault.slab.endswith("_v")
                element = dim * formula.element_bytes if values else _FLOAT_BYTES
                rows, rest = divmod(size, heads * element)
                read = Rows(heads, dim, rows, formula)
                if rows and not rest and any(tilings(read, fault, evidence)):
                    found.append(read)
    if not fault.slab.endswith("_s") or fault.available is None:
        return found
    # tmp_v stands before it, and workspaces are whole MiB: the dimensions that make one.
    whole = [each for each in found if (each.v_bytes + fault.available) % (1 << 20) == 0]
    return whole or found


def tilings(read: Rows, fault: Fault, evidence: Evidence) -> Iterator[tuple[int, int, int]]:
    """(tile, tiles, group) that make the rows; group 0 where it does not matter."""
    if fault.slab.startswith(DECODE):
        yield 1, read.rows, 0
        return
    for tile in tiles_of(read.head_dim):
        if not read.formula.shared_rows:
            if read.rows % tile == 0 and read.rows // tile <= _MOST_TILES:
                yield tile, read.rows // tile, 0
            continue
        known = query_group(evidence, read.heads)
        for group in (known,) if known else _COMMON_GROUPS:
            if read.heads % group == 0:
                tiles = read.rows * group // tile
                # The largest that leads to these rows; fewer tiles may as well.
                if tiles and -(-tiles * tile // group) == read.rows and tiles <= _MOST_TILES:
                    yield tile, tiles, group


def tiles_of(head_dim: int) -> tuple[int, ...]:
    """What `FA2DetermineCtaTileQ` can choose for a dimension."""
    if head_dim >= 512:
        return (64, 32, 16)
    return (64, 16) if head_dim >= 256 else (128, 64, 16)


def graph_tiles(batch: int, gqa: int, tile: int) -> int:
    """Tiles that a CUDA graph of `batch` rows of one token plans at least."""
    return -(-batch * gqa // tile) + batch - 1
