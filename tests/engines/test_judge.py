"""Which sites are live, which call is the worst, and how large their workspace is."""

from __future__ import annotations

from typing import Any

import pytest

from ws_guard.engines.judge import judge_site, liveness, planned_call, workspace_bytes, worst_of
from ws_guard.engines.launch import Launch
from ws_guard.engines.model import model_of
from ws_guard.engines.releases import ENGINES, find_release, sites_of
from ws_guard.engines.sites import Site
from ws_guard.sizing import LAYOUTS, InputError

from .models import CONFIGS

MIB = 1 << 20


def site(engine: str, workspace: str, release: str = "0.33.0") -> Site:
    found = find_release(ENGINES[engine], release)[0]
    return next(s for s in sites_of(ENGINES[engine], found) if s.workspace == workspace)


def launch(model: str, engine: str = "vllm", **changes: Any) -> Launch:
    limits = {"max_num_batched_tokens": 16_384, "max_num_seqs": 1_024}
    return Launch(engine, "", model_of(model, CONFIGS[model]), **{**limits, **changes})


@pytest.mark.parametrize(
    ("workspace", "model", "changes", "live", "why"),
    [
        ("sparse_mla", "zai/glm", {}, True, "the default"),
        ("sparse_mla", "deepseek/r1", {}, False, "only sparse_mla models"),
        ("sparse_mla", "zai/glm", {"pcp": 2, "dcp": 2}, False, "refuses PCP with DCP"),
        ("mla_prefill_ragged", "zai/glm", {}, True, "the default"),
        ("mla_prefill_ragged", "deepseek/r1", {}, False, "head dimensions 192/64/256"),
        ("mla_prefill_ragged", "zai/glm", {"prefill_backend": "FLASH_ATTN"}, False, "is chosen"),
        ("kimi_k3_decode", "deepseek/r1", {}, False, "only for its models"),
        ("dense_dcp_context", "meta/llama", {}, False, "only under DCP"),
        ("dense_dcp_context", "meta/llama", {"tp": 8, "dcp": 8}, True, "the default"),
        ("dense_decode", "meta/llama", {"skipped_sites": ("dense_decode",)}, False, "by a flag"),
    ],
)
def test_liveness(
    workspace: str, model: str, changes: dict[str, Any], live: bool, why: str
) -> None:
    answer = liveness(site("vllm", workspace), launch(model, **changes))
    assert answer[0] is live
    assert why in answer[1]


def test_calls_at_their_bounds() -> None:
    ragged = site("vllm", "mla_prefill_ragged")
    chosen = {"prefill_backend": "TRTLLM_RAGGED", "tp": 8}
    call = planned_call(ragged, launch("deepseek/r1", **chosen))
    assert (call.heads, call.batch, call.q_len, call.lse) == (16, 1_024, 16_384, True)
    # A sparse model's dense prefill ends at index_topk tokens
    assert planned_call(ragged, launch("zai/glm", tp=8)).q_len == 2_048
    # A prefill step has no more requests than tokens
    few = launch("deepseek/r1", max_num_batched_tokens=100, **chosen)
    assert planned_call(ragged, few).batch == 100


def test_drafted_tokens_widen_a_row() -> None:
    call = planned_call(site("vllm", "mla_decode"), launch("deepseek/r1", draft_tokens=3))
    assert (call.batch, call.q_len) == (1_024, 4)


@pytest.mark.parametrize(("of_rank", "heads"), [(8, 64), (64, 64), (65, 128), (192, 192)])
def test_heads_are_padded_for_deepseek_v4(of_rank: int, heads: int) -> None:
    model = model_of("v4", {**CONFIGS["deepseek/v4"], "num_attention_heads": 8 * of_rank})
    padded = launch("deepseek/v4", tp=8)._replace(model=model)
    assert planned_call(site("vllm", "dsv4"), padded).heads == heads


def test_sizes() -> None:
    under_dcp = launch("deepseek/r1", tp=8, dcp=8)
    assert workspace_bytes(site("vllm", "mla_decode"), under_dcp) == 256 * MIB
    assert workspace_bytes(site("vllm", "mla_decode"), launch("deepseek/r1")) == 128 * MIB
    # A constant does not follow the variable; one that is multiplied does
    odd = {"tp": 8, "dcp": 8, "workspace_bytes": 100 * MIB}
    assert workspace_bytes(site("vllm", "mla_decode"), launch("deepseek/r1", **odd)) == 256 * MIB
    dsa = site("sglang", "dsa", "0.5.23")
    assert workspace_bytes(dsa, launch("zai/glm", "sglang", **odd)) == 800 * MIB


def test_a_guarded_site_is_judged_by_the_rows_that_the_engine_hands_over() -> None:
    guarded = site("vllm", "dense_dcp_context")
    judged = judge_site(guarded, launch("meta/llama", tp=8, dcp=8), (LAYOUTS["C"],))
    # (394 MiB - 1 MiB) / (8 * 64 * 16,384) rows of the 1,024
    assert judged.plan.planned_batch == judged.plan.overflow_threshold_batch == 49
    assert judged.plan.fits


def test_of_two_layouts_the_worse_counts() -> None:
    under_dcp = launch("zai/glm", tp=8, dcp=8)
    old = site("vllm", "sparse_mla", "0.26.0")
    judged = judge_site(old, under_dcp, (LAYOUTS["C"], LAYOUTS["B"]))
    assert (judged.plan.layout, judged.plan.overflow_threshold_batch) == ("B", 3_080)


def test_nothing_live_has_no_worst() -> None:
    with pytest.raises(InputError, match="no site is live"):
        worst_of([])
