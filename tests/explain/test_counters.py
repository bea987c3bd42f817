"""Layout C's counter, a buffer of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from messages import COUNTER_CHECK, FLAGS, HEADS, short_counter
from solutions import triples

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]


def test_counter_with_sizes(explain_one: ExplainOne) -> None:
    # 4 * 64 heads * 12,288 rows.
    found = explain_one([short_counter(4_096, 3_145_728)])
    assert (found.size, found.available, found.layouts) == (3_145_728, 4_096, ("C",))
    assert (64, 12_288, None) in triples(found)
    assert found.confidence == "consistent"


def test_bare_counter_check(explain_one: ExplainOne) -> None:
    found = explain_one([FLAGS, HEADS, COUNTER_CHECK])
    assert (found.kind, found.confidence, found.size) == ("counter", "unsolved", None)
    # 4 * 16,384 rows * 64 heads.
    assert any("4,194,304 bytes" in note for note in found.notes)
