"""A list of calls: each of them once, what may well be before what hardly is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from messages import STATS, overflow, short_counter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]


def stats(heads: int, batch: int, q_len: int) -> int:
    """Bytes of the padded slab."""
    return 8 * heads * batch * -(-q_len // 256) * 256 + (1 << 20)


@pytest.mark.parametrize(
    "told",
    [
        ["vLLM API server version 0.33.0", "tp=8 dcp=8 max_num_seqs=2048 num_attention_heads=64"],
        ["vLLM API server version 0.29.0", "tp=8 dcp=8 max_num_batched_tokens=16384"],
        ["ServerArgs(model_path='m', tp_size=8, dcp_size=8, max_running_requests=4096)"],
        ["tp=8 dcp=8"],
    ],
    ids=["0.33", "0.29", "sglang", "flags"],
)
@pytest.mark.parametrize("line", [49, 71])
def test_no_call_is_listed_twice(told: list[str], line: int, explain_one: ExplainOne) -> None:
    found = explain_one([*told, overflow(STATS, stats(64, 2_048, 1), 200_000_000, line)])
    listed = Counter(
        (each.num_qo_heads, each.batch_size, each.max_q_len) for each in found.solutions
    )
    assert listed
    assert [call for call, times in listed.items() if times > 1] == []


def test_lengths_of_several_sites_are_one_range(explain_one: ExplainOne) -> None:
    """Sparse MLA has rows of one token, dense decode of as many as are drafted (unknown here)."""
    told = ["vLLM API server version 0.33.0", "tp=8 dcp=8 max_num_seqs=2048 num_attention_heads=64"]
    found = explain_one([*told, overflow(STATS, stats(64, 2_048, 1), 200_000_000, 71)])
    first = found.solutions[0]
    assert (first.num_qo_heads, first.batch_size, first.max_q_len) == (64, 2_048, 1)
    assert (first.lowest_q_len, first.highest_q_len) == (1, 256)


def test_heads_that_no_model_has_come_last(explain_one: ExplainOne) -> None:
    """A prefix of 48 requests: one query token a row would take 512 heads of a rank."""
    told = (
        "server_args=ServerArgs(model_path='m', tp_size=1, max_running_requests=48, "
        "chunked_prefill_size=16384)"
    )
    message = overflow(STATS, stats(16, 48, 8_192), 157_286_400, 71)
    found = explain_one([told, message])
    heads = [each.num_qo_heads for each in found.solutions]
    assert {16, 512} <= set(heads)
    assert heads[0] in (16, 32, 64, 128)
    common = [count for count in heads if count in (16, 32, 64, 128)]
    assert heads[: len(common)] == common


def test_counters_are_ranked_as_slabs_are(explain_one: ExplainOne) -> None:
    # 4 * 64 heads * 12,288 rows.
    found = explain_one([short_counter(4_096, 3_145_728)])
    calls = [(each.num_qo_heads, each.batch_size) for each in found.solutions[:3]]
    assert calls == [(64, 12_288), (128, 6_144), (32, 24_576)]
    # 1 head and 786,432 rows: no batch above 65,535 can launch.
    launching = [(each.batch_size or 0) <= 65_535 for each in found.solutions]
    assert launching == sorted(launching, reverse=True)


def test_candidates_are_ranked(explain_one: ExplainOne) -> None:
    found = explain_one([overflow(STATS, 470_810_624, 413_138_944)[60:]])
    assert found.confidence == "consistent"
    # (470,810,624 - 1 MiB) / (8 * 256) = 229,376 heads * rows.
    assert [(each.num_qo_heads, each.batch_size) for each in found.solutions[:3]] == [
        (64, 3_584),
        (128, 1_792),
        (32, 7_168),
    ]
    by_padding = [each for each in found.solutions if each.lowest_q_len == 1]
    # Layout A has no padding: its products, 58,851,328 = 470,810,624 / 8, come last.
    products = {each.num_qo_heads * (each.batch_size or 0) for each in by_padding[:10]}
    assert products == {229_376}
    assert found.workspace_bytes == (413_138_944, 421_527_552)
