"""Configs with anything at all under the keys that are read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ws_guard.engine_planning import plan_launch
from ws_guard.engines.launch import Launch
from ws_guard.engines.model import Model, model_of
from ws_guard.engines.releases import ENGINES
from ws_guard.sizing import InputError

if TYPE_CHECKING:
    from pathlib import Path

#: Every key that `model_of` reads, nested parts included.
KEYS = (
    "architectures", "model_type", "num_attention_heads", "n_head", "num_heads", "hidden_size",
    "n_embd", "num_key_value_heads", "head_dim", "num_hidden_layers", "n_layer", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_topk", "index_head_dim",
    "max_position_embeddings", "dtype", "torch_dtype", "text_config", "llm_config",
    "language_config", "thinker_config", "language_model",
)  # fmt: skip
NUMBERS = (
    "heads", "kv_heads", "head_dim", "layers", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "index_topk", "index_head_dim", "max_len",
)  # fmt: skip
ODD = [{"a": 1}, 5, True, [5], [{}], [None], -1.5, {"0": "x"}]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from([64, 8, "bfloat16", "deepseek_v4", 10**400, -(10**400)]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
CONFIGS = st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=10)
NIGHTLY = os.environ.get("WS_GUARD_NIGHTLY") == "1"


@settings(max_examples=20_000 if NIGHTLY else 300, deadline=None)
@given(config=CONFIGS, heads=st.none() | st.integers(1, 256))
def test_any_config_is_a_model_or_one_line(config: dict[str, Any], heads: int | None) -> None:
    if heads is not None:
        config = {**config, "num_attention_heads": heads}
    with contextlib.suppress(InputError):
        _look_at(model_of("m", config))


def _look_at(model: Model) -> None:
    assert type(model.architecture) is str
    for name in NUMBERS:
        value = getattr(model, name)
        assert type(value) is int
        assert 0 <= value < 1 << 31, name
    assert model.heads > 0
    for engine in ("vllm", "sglang"):
        release = ENGINES[engine].releases[-1].version
        launch = Launch(engine, release, model, max_num_batched_tokens=8_192, max_num_seqs=64)
        with contextlib.suppress(InputError):
            json.dumps(plan_launch(launch).as_dict())


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_architectures_are_one_line(odd: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"num_attention_heads": 64, "architectures": odd})
    )
    with pytest.raises(InputError, match="its architectures are no list of names"):
        model_of("m", json.loads((tmp_path / "config.json").read_text()))


def test_plan_says_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 64, "architectures": {"a": 1}}')
    done = subprocess.run(
        [sys.executable, "-m", "ws_guard", "plan", "--engine", "vllm", "--model", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "its architectures are no list of names" in done.stderr
