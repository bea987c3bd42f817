"""The calls of a finding, in the three numbers of the public contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ws_guard.explain.finding import Finding


def triples(found: Finding) -> set[tuple[int, int | None, int | None]]:
    """(heads, batch, query length) of every solution."""
    return {(each.num_qo_heads, each.batch_size, each.max_q_len) for each in found.solutions}
