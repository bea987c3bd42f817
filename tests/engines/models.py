"""Models as their config.json tells them: the fields of public configs that bear on attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "torch_dtype": "bfloat16"}
_SPARSE = {**_MLA, "index_topk": 2048, "index_head_dim": 128}

CONFIGS: dict[str, dict[str, Any]] = {
    "zai/glm": {
        **_SPARSE,
        "architectures": ["GlmMoeDsaForCausalLM"],
        "num_attention_heads": 64,
        "num_hidden_layers": 78,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "max_position_embeddings": 202_752,
    },
    "deepseek/r1": {
        **_MLA,
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_attention_heads": 128,
        "num_hidden_layers": 61,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 163_840,
    },
    "deepseek/v32": {
        **_SPARSE,
        "architectures": ["DeepseekV32ForCausalLM"],
        "num_attention_heads": 128,
        "num_hidden_layers": 61,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 163_840,
    },
    "deepseek/v4": {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "num_attention_heads": 64,
        "num_hidden_layers": 43,
        "head_dim": 512,
        "max_position_embeddings": 1_048_576,
    },
    "moonshot/kimi": {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": {
            **_MLA,
            "architectures": ["DeepseekV3ForCausalLM"],
            "num_attention_heads": 64,
            "num_hidden_layers": 61,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "max_position_embeddings": 262_144,
        },
    },
    "qwen/moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_hidden_layers": 94,
        "max_position_embeddings": 40_960,
        "torch_dtype": "bfloat16",
    },
    "meta/llama": {
        "architectures": ["LlamaForCausalLM"],
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "max_position_embeddings": 131_072,
        "torch_dtype": "bfloat16",
    },
}


def write_hub(root: Path) -> Path:
    """A hub cache under `root` that holds every config, as the hub client lays it out."""
    for name, config in CONFIGS.items():
        folder = root / f"models--{name.replace('/', '--')}"
        snapshot = folder / "snapshots" / "0123abcd"
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("0123abcd")
        (snapshot / "config.json").write_text(json.dumps(config))
    return root
