"""What a vLLM worker says about itself: who it is, and the launch as it came to be.

`config` is its `VllmConfig`, but for `_mapping`, which takes a Hugging Face one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from ws_guard.foreign import Foreign
from ws_guard.sizing import DEFAULT_SM_COUNT

from .launch import Launch
from .model import Model, model_of
from .vllm_sites import ENV

#: Stands for a backend where the worker has none of that kind.
NONE = "none"


def identity(config: Foreign, rank: int) -> dict[str, Any]:
    """Labels of a worker: its global data-parallel index, its rank inside that engine.

    `rank` is the worker's own, which an external launcher counts across all engines.
    """
    parallel = config.parallel_config
    engine = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
    size = getattr(parallel, "world_size", 0)
    return {
        "engine": str(engine),
        "rank": str(rank % size if size else rank),
        "expected_workers": expected_workers(parallel),
        "info": {
            "engine_name": "vllm",
            "engine_version": version(),
            "model_name": _model_name(config.model_config),
            "tp": str(parallel.tensor_parallel_size),
            "dcp": str(parallel.decode_context_parallel_size),
            "pcp": str(getattr(parallel, "prefill_context_parallel_size", 1)),
            "dp": str(getattr(parallel, "data_parallel_size", 1)),
        },
    }


def expected_workers(parallel: Foreign) -> int | None:
    """Workers of this launch on this host; None where vLLM does not tell them from other hosts'."""
    executor = getattr(parallel, "distributed_executor_backend", None)
    if executor == "external_launcher":
        told = os.environ.get("LOCAL_WORLD_SIZE", "")
        return int(told) if told.isdigit() else None
    # Under Ray vLLM counts the whole cluster as local.
    if executor == "ray" or getattr(parallel, "data_parallel_backend", "mp") == "ray":
        return None
    local = getattr(parallel, "local_world_size", None)
    if local is None:
        return None
    return int(local * max(1, getattr(parallel, "data_parallel_size_local", 1) or 1))


def version() -> str:
    """vLLM's version."""
    return str(getattr(sys.modules.get("vllm"), "__version__", ""))


def _model_name(model_config: Foreign) -> str:
    served = getattr(model_config, "served_model_name", None)
    if isinstance(served, (list, tuple)):
        served = served[0] if served else None
    return str(served or getattr(model_config, "model", ""))


def launch_of(
    config: Foreign,
    *,
    layers_loaded: bool,
    sm_count: int | None,
) -> Launch:
    """The launch of a running worker. Once its layers are there they tell the backends in use."""
    parallel, scheduler = config.parallel_config, config.scheduler_config
    speculative = getattr(config, "speculative_config", None)
    backends = _backends_of_layers if layers_loaded else _configured_backends
    attention, prefill = backends(config)
    return Launch(
        engine="vllm",
        version=version(),
        model=_model(config),
        tp=parallel.tensor_parallel_size,
        dcp=parallel.decode_context_parallel_size,
        pcp=getattr(parallel, "prefill_context_parallel_size", 1),
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        draft_tokens=getattr(speculative, "num_speculative_tokens", 0) or 0,
        workspace_bytes=explicit_workspace_bytes(),
        attention_backends=attention,
        prefill_backend=prefill,
        sm_count=sm_count or DEFAULT_SM_COUNT,
    ).checked()


def explicit_workspace_bytes() -> int | None:
    """The engine's variable where the user has set it."""
    text = os.environ.get(ENV)
    return int(text) if text else None


def heads_per_rank(config: Foreign) -> int:
    """Query heads of one rank, as vLLM counts them."""
    return int(config.model_config.get_num_attention_heads(config.parallel_config))


def _model(config: Foreign) -> Model:
    model_config = config.model_config
    text = getattr(model_config, "hf_text_config", None) or model_config.hf_config
    heads = heads_per_rank(config) * config.parallel_config.tensor_parallel_size
    told = {**_mapping(text), "num_attention_heads": heads}
    architectures = getattr(getattr(model_config, "hf_config", text), "architectures", None)
    if architectures:
        told["architectures"] = list(architectures)
    return model_of(_model_name(model_config), told)


def _mapping(config: Foreign) -> Mapping[str, Any]:
    convert = getattr(config, "to_dict", None)
    told: Mapping[str, Any] = convert() if callable(convert) else vars(config)
    return told


def _backends_of_layers(config: Foreign) -> tuple[tuple[str, ...], str | None]:
    attention: dict[str, None] = {}
    prefill = NONE
    for layer in config.compilation_config.static_forward_context.values():
        backend = getattr(layer, "get_attn_backend", None)
        if callable(backend):
            attention[backend().get_name()] = None
        chosen = getattr(layer, "prefill_backend", None)
        if chosen is not None:
            prefill = chosen.get_name()
    return tuple(attention) or (NONE,), prefill


def _configured_backends(config: Foreign) -> tuple[tuple[str, ...], str | None]:
    told = getattr(config, "attention_config", None)
    attention = getattr(getattr(told, "backend", None), "name", None)
    prefill = getattr(getattr(told, "mla_prefill_backend", None), "name", None)
    return ((attention,) if attention else ()), prefill
