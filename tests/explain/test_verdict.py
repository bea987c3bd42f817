"""What is said where there is little to solve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from messages import UNNAMED, overflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]


def test_unnamed_wording_is_unsolved(explain_one: ExplainOne) -> None:
    found = explain_one([UNNAMED])
    assert (found.confidence, found.size) == ("unsolved", None)
    assert any("names neither slab nor size" in note for note in found.notes)


def test_absurd_size_is_a_bad_plan(explain_one: ExplainOne) -> None:
    found = explain_one([overflow("batch_prefill_tmp_v", 1 << 60, 134_217_728)])
    assert found.confidence == "unsolved"
    assert found.recommended_workspace_bytes is None
    assert any("wrong lengths" in note for note in found.notes)


def test_slab_that_is_not_known(explain_one: ExplainOne) -> None:
    found = explain_one([overflow("batch_prefill_request_indices", 9_000_000, 8_388_608)])
    assert found.confidence == "unsolved"
    assert any("short by 611,392 bytes" in note for note in found.notes)
