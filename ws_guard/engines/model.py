"""What a model's config.json tells about its attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ws_guard.sizing import HeadDims, InputError

from .sites import ModelKind

#: Where multimodal models keep the language model's part.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "language_model")
_MOST_NESTED = 8
#: The largest number that anything of a model can be.
_MOST = (1 << 31) - 1
_BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Top-k tokens of every sparse MLA model so far: the bound where the config was not read.
DEFAULT_INDEX_TOPK = 2_048


class Model(NamedTuple):
    """Attention of a model, in its own words; 0 where the config does not tell.

    `heads` are query heads, dims elements per head, `dtype_bytes` bytes per cached element.
    """

    name: str
    kind: ModelKind
    heads: int
    architecture: str = ""
    kv_heads: int = 0
    head_dim: int = 0
    layers: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    index_topk: int = 0
    index_head_dim: int = 0
    max_len: int = 0
    dtype_bytes: int = 2

    @property
    def prefill_dims(self) -> tuple[int, int, int]:
        """(nope, rope, value) dimensions of an MLA head: they select the prefill backend."""
        return self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim

    @property
    def head_dims(self) -> HeadDims | None:
        """Dimensions of a head as the decode kernel sees it; None where the config is silent."""
        if self.kv_lora_rank:
            qk = self.kv_lora_rank + self.qk_rope_head_dim
            return HeadDims(qk, self.kv_lora_rank, self.index_topk)
        return HeadDims(self.head_dim, self.head_dim) if self.head_dim else None


def assumed_model(kind: ModelKind, heads: int, architecture: str = "") -> Model:
    """A model of which only the heads are known."""
    topk = DEFAULT_INDEX_TOPK if kind == "sparse_mla" else 0
    return Model("", kind, heads, architecture, index_topk=topk)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `over`, mappings merged key by key, as the engines override."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = merge(below, value) if both and isinstance(below, Mapping) else value
    return merged


def model_of(name: str, config: Mapping[str, Any]) -> Model:
    """A model from its config; raises `InputError` where it tells no attention heads.

    A number that is none, or that nothing of a model can be, counts as not told.
    """
    text = _text_config(config)
    heads = _number(text, "num_attention_heads", "n_head", "num_heads")
    if not heads:
        raise InputError(f"the config of {name} tells no num_attention_heads: pass --heads")
    architecture = _architecture(name, config, text)
    hidden = _number(text, "hidden_size", "n_embd")
    return Model(
        name=name,
        kind=_kind(text, architecture),
        heads=heads,
        architecture=architecture,
        kv_heads=_number(text, "num_key_value_heads") or heads,
        head_dim=_number(text, "head_dim") or hidden // heads,
        layers=_number(text, "num_hidden_layers", "n_layer"),
        kv_lora_rank=_number(text, "kv_lora_rank"),
        qk_nope_head_dim=_number(text, "qk_nope_head_dim"),
        qk_rope_head_dim=_number(text, "qk_rope_head_dim"),
        v_head_dim=_number(text, "v_head_dim"),
        index_topk=_number(text, "index_topk"),
        index_head_dim=_number(text, "index_head_dim"),
        max_len=_number(text, "max_position_embeddings"),
        dtype_bytes=_dtype_bytes(text, config),
    )


def _architecture(name: str, *configs: Mapping[str, Any]) -> str:
    """The model's class; raises `InputError` where the config has something else in its place."""
    told = next((each for config in configs if (each := config.get("architectures"))), [""])
    if not isinstance(told, list) or not isinstance(told[0], str):
        raise InputError(f"the config of {name} is none: its architectures are no list of names")
    return told[0]


def _text_config(config: Mapping[str, Any], deepest: int = _MOST_NESTED) -> Mapping[str, Any]:
    """The language model's part: the innermost level that tells attention heads.

    Where two levels tell them the engines take the nested one; a key that is given above it, as by
    an override, holds below where the nested part is silent.
    """
    for key in _NESTED if deepest else ():
        nested = config.get(key)
        if isinstance(nested, Mapping):
            inner = _text_config(nested, deepest - 1)
            if "num_attention_heads" in inner:
                return inner
            return {**config, **inner}
    return config


def _kind(text: Mapping[str, Any], architecture: str) -> ModelKind:
    model_type = str(text.get("model_type", ""))
    if model_type.startswith("deepseek_v4") or architecture.startswith("DeepseekV4"):
        return "dsv4"
    if _number(text, "kv_lora_rank"):
        return "sparse_mla" if _number(text, "index_topk") else "mla"
    return "gqa"


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST:
            return value
    return 0


def _dtype_bytes(*configs: Mapping[str, Any]) -> int:
    for config in configs:
        dtype = config.get("dtype") or config.get("torch_dtype")
        if isinstance(dtype, str):
            return _BYTES_OF_DTYPE.get(dtype.removeprefix("torch."), 2)
    return 2
