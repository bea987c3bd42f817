"""What configs tell: kind of attention, heads, dimensions."""

from __future__ import annotations

from typing import Any

import pytest

from ws_guard.engines.model import assumed_model, merge, model_of
from ws_guard.sizing import HeadDims, InputError

from .models import CONFIGS


@pytest.mark.parametrize(
    ("name", "kind", "heads", "dims"),
    [
        ("zai/glm", "sparse_mla", 64, HeadDims(576, 512, 2048)),
        ("deepseek/r1", "mla", 128, HeadDims(576, 512)),
        ("moonshot/kimi", "mla", 64, HeadDims(576, 512)),
        ("deepseek/v4", "dsv4", 64, HeadDims(512, 512)),
        ("qwen/moe", "gqa", 64, HeadDims(128, 128)),
        # head_dim is not told: 8,192 / 64
        ("meta/llama", "gqa", 64, HeadDims(128, 128)),
    ],
)
def test_kinds(name: str, kind: str, heads: int, dims: HeadDims) -> None:
    model = model_of(name, CONFIGS[name])
    assert (model.kind, model.heads, model.head_dims) == (kind, heads, dims)


def test_a_nested_config_keeps_the_outer_architecture() -> None:
    assert model_of("k", CONFIGS["moonshot/kimi"]).architecture == "KimiK25ForConditionalGeneration"


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_where_language_models_are_nested(key: str) -> None:
    assert model_of("m", {"vision_config": {}, key: {"num_attention_heads": 8}}).heads == 8


def test_nested_twice() -> None:
    config = {"thinker_config": {"text_config": {"num_attention_heads": 28, "dtype": "float32"}}}
    model = model_of("omni", config)
    assert (model.heads, model.dtype_bytes, model.kv_heads) == (28, 4, 28)


@pytest.mark.parametrize("config", [{}, {"num_attention_heads": "many"}, {"text_config": 1}])
def test_no_heads(config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="tells no num_attention_heads: pass --heads"):
        model_of("m", config)


def test_overrides_merge_key_by_key() -> None:
    base = {"a": 1, "text_config": {"b": 2, "c": 3}}
    assert merge(base, {"a": 4, "text_config": {"b": 5}}) == {
        "a": 4,
        "text_config": {"b": 5, "c": 3},
    }


def test_heads_alone() -> None:
    assert assumed_model("sparse_mla", 64).index_topk == 2_048
    assert assumed_model("mla", 64).head_dims is None
