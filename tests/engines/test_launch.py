"""A launch's derived numbers, and what none can have."""

from __future__ import annotations

from typing import Any

import pytest

from ws_guard.engines.launch import Launch, kv_bytes_per_token, kv_tokens_lost
from ws_guard.engines.model import assumed_model, model_of
from ws_guard.sizing import InputError

from .models import CONFIGS


def launch(engine: str = "vllm", model: str = "deepseek/r1", **changes: Any) -> Launch:
    return Launch(engine, "", model_of(model, CONFIGS[model]), **changes)


def test_sglang_shares_its_ranks_between_dimensions() -> None:
    # 128 heads over 16 / (4 * 2) = 2 ranks; chunks and requests are divided by 4
    shared = launch(
        "sglang", tp=16, attention_dp=4, pcp=2, max_num_batched_tokens=8_192, max_num_seqs=64
    )
    assert (shared.heads_per_rank, shared.step_tokens, shared.step_requests) == (64, 2_048, 16)
    assert launch(tp=16, dp=4).heads_per_rank == 8


@pytest.mark.parametrize(
    ("model", "changes", "size"),
    [
        # 61 layers * 576 elements * 2 bytes
        ("deepseek/r1", {"tp": 8}, 61 * 576 * 2),
        ("deepseek/r1", {"tp": 8, "kv_cache_dtype": "fp8"}, 61 * 576),
        # The packed layout and the indexer's key with its scale, half of the layers
        ("deepseek/v32", {"kv_cache_dtype": "fp8_ds_mla", "pp": 2}, 31 * (656 + 132)),
        # Keys and values of 8 / 4 heads; of one head where ranks share it
        ("meta/llama", {"tp": 4}, 80 * 2 * 2 * 128 * 2),
        ("qwen/moe", {"tp": 8}, 94 * 2 * 1 * 128 * 2),
        ("deepseek/v4", {}, None),
    ],
)
def test_kv_bytes(model: str, changes: dict[str, Any], size: int | None) -> None:
    assert kv_bytes_per_token(launch(model=model, **changes)) == size


def test_kv_tokens() -> None:
    # 70,272 bytes a token; DCP 8 holds every token once over 8 ranks
    assert kv_tokens_lost(launch(tp=8, dcp=8), 70_273) == 2 * 8
    assert kv_tokens_lost(Launch("vllm", "", assumed_model("mla", 64)), 1) is None


@pytest.mark.parametrize(
    ("engine", "changes", "words"),
    [
        ("vllm", {"tp": 0}, "tp must be between 1"),
        ("vllm", {"tp": 8, "dcp": 3}, "dcp 3 must divide tp x pcp = 8"),
        ("sglang", {"tp": 8, "dcp": 16}, "dcp 16 must divide the attention ranks = 8"),
        ("sglang", {"tp": 8, "attention_dp": 3}, "attention dp 3 x context parallel 1 must divide"),
        ("vllm", {"max_num_seqs": 0}, "max_num_seqs must be between 1"),
        ("vllm", {"max_num_batched_tokens": -1}, "max_num_batched_tokens must be between 1"),
        ("vllm", {"workspace_bytes": 0}, "workspace_bytes must be between 1"),
        ("vllm", {"sm_count": 5_000}, "sm_count must be between 1"),
        ("vllm", {"draft_tokens": -1}, "draft_tokens must be between 0"),
        ("sglang", {"prefill_requests": 0}, "prefill_requests must be between 1"),
    ],
)
def test_impossible_launches(engine: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        launch(engine, **changes).checked()
