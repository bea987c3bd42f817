"""What stands at the head of a workspace, and slabs that are no multiple of the alignment."""

from __future__ import annotations

import pytest

from ws_guard.sizing import LAYOUTS, Call, head_slab, need


@pytest.mark.parametrize(
    ("entry", "without_lse", "with_lse"),
    # Layouts A, B and C, as docs/HOW_IT_WORKS.md has them
    [
        ("decode", ("counter", "counter", "scratch"), ("counter", "counter", "softmax_stats")),
        ("context", (None, None, None), (None, "softmax_stats", "softmax_stats")),
        ("ragged", ("counter", "counter", "scratch"), ("counter", "counter", "softmax_stats")),
        ("dsv4", ("counter", "counter", "scratch"), ("counter", "counter", "scratch")),
        ("xqa", ("counter",) * 3, ("counter",) * 3),
        ("xqa_mla", ("counter",) * 3, ("counter",) * 3),
    ],
)
def test_the_head_of_a_workspace(
    entry: str, without_lse: tuple[str | None, ...], with_lse: tuple[str | None, ...]
) -> None:
    for lse, expected in ((False, without_lse), (True, with_lse)):
        found = tuple(head_slab(entry, lse, layout) for layout in LAYOUTS.values())
        assert found == expected


def test_nothing_is_padded_for_a_scratch_that_is_not_written() -> None:
    # Layout A, one head and one token: 8 bytes of statistics behind the counter
    call = Call("ragged", 1, 1, sum_q=1)
    assert need(call, LAYOUTS["A"]).total == 8_388_608 + 8


def test_tokens_that_nobody_counted_are_as_many_as_they_can_be() -> None:
    # Layout A, 3 rows of up to 2 tokens each
    assert need(Call("ragged", 1, 3, q_len=2), LAYOUTS["A"]).total == 8_388_608 + 8 * 6
