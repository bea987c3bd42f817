"""A vLLM launch command as a `Launch`. Flags as in `engine/arg_utils.py` of 0.33.0."""

from __future__ import annotations

from typing import Any

from ws_guard.sizing import InputError

from .flags import (
    Flag,
    human_number,
    human_number_or_auto,
    json_object,
    strict_json_object,
    whole_number,
)
from .sites import EngineRelease

_PARALLEL = (
    ("tp", ("--tensor-parallel-size", "-tp")),
    ("dcp", ("--decode-context-parallel-size", "-dcp")),
    ("pcp", ("--prefill-context-parallel-size", "-pcp")),
    ("dp", ("--data-parallel-size", "-dp")),
    ("pp", ("--pipeline-parallel-size", "-pp")),
)


def _off(name: str) -> tuple[str, str]:
    """What takes `--enable-NAME` back; the second since 0.33.0."""
    return f"--no-enable-{name}", f"--disable-{name}"


FLAGS: tuple[Flag, ...] = (
    *(Flag(spellings, field, whole_number) for field, spellings in _PARALLEL),
    Flag(("--model",), "model", str),
    Flag(("--revision",), "revision", str),
    Flag(("--hf-config-path",), "config_path", str),
    Flag(("--download-dir",), "cache", str),
    Flag(("--config",), "config", str),
    Flag(("--hf-overrides",), "overrides", json_object),
    Flag(("--max-num-batched-tokens",), "max_num_batched_tokens", human_number),
    Flag(("--max-num-seqs",), "max_num_seqs", whole_number),
    Flag(("--max-model-len",), "max_len", human_number_or_auto),
    Flag(("--kv-cache-dtype",), "kv_cache_dtype", str),
    Flag(("--attention-backend",), "attention_backend", str),
    Flag(("--attention-config", "-ac"), "attention_config", strict_json_object),
    Flag(("--speculative-config", "-sc"), "speculative_config", json_object),
    Flag(("--spec-tokens",), "drafted", whole_number),
    Flag(("--performance-mode",), "performance_mode", str),
    Flag(("--all2all-backend",), "all2all_backend", str),
    Flag(("--enable-expert-parallel", "-ep"), "expert_parallel", None, True),
    Flag(_off("expert-parallel"), "expert_parallel", None, False),
    Flag(("--enable-chunked-prefill",), "chunked_prefill", None, True),
    Flag(_off("chunked-prefill"), "chunked_prefill", None, False),
)

#: Step tokens where data-parallel experts run batched (deepep_low_latency, nixl_ep).
_BATCHED_EXPERTS_TOKENS = 256
_BATCHED_EXPERTS = ("deepep_low_latency", "nixl_ep")


def launch_fields(values: dict[str, Any], release: EngineRelease, max_len: int) -> dict[str, Any]:
    """The fields of a `Launch` from flag values; `max_len` is the model's own context.

    Defaults are the API server's on a GPU of 160 GB and more.
    """
    attention = values.get("attention_config") or {}
    backend = values.get("attention_backend") or attention.get("backend")
    prefill = attention.get("mla_prefill_backend")
    fields = {name: values[name] for name, _ in _PARALLEL if name in values}
    tokens, seqs = _limits(values, release, values.get("max_len") or max_len)
    trtllm_off = attention.get("use_trtllm_attention") in (False, 0, "false")
    dense = ("dense_decode", "dense_prefill", "dense_dcp_context")
    return {
        **fields,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "draft_tokens": _drafted(values),
        "attention_backends": (str(backend).upper(),) if backend and backend != "auto" else (),
        "prefill_backend": str(prefill).upper() if prefill else None,
        "kv_cache_dtype": values.get("kv_cache_dtype", "auto"),
        "skipped_sites": dense if trtllm_off else (),
    }


def _limits(values: dict[str, Any], release: EngineRelease, max_len: int) -> tuple[int, int]:
    """Tokens and requests of the largest step, as `EngineArgs` fills them in."""
    tokens, seqs = values.get("max_num_batched_tokens"), values.get("max_num_seqs")
    double = 2 if values.get("performance_mode") == "throughput" else 1
    requests = release.max_num_seqs * double if seqs is None else seqs
    if tokens is not None:
        return tokens, requests
    batched = (
        values.get("all2all_backend") in _BATCHED_EXPERTS
        and values.get("expert_parallel", False)
        and values.get("dp", 1) > 1
    )
    default = _BATCHED_EXPERTS_TOKENS if batched else release.max_num_batched_tokens
    default *= double
    if values.get("chunked_prefill") is False:
        default = max(default, max_len)
    return (min(default, requests * max_len) if max_len else default), requests


def _drafted(values: dict[str, Any]) -> int:
    speculative = values.get("speculative_config") or {}
    drafted = speculative.get("num_speculative_tokens", values.get("drafted", 0))
    if isinstance(drafted, bool) or not isinstance(drafted, int) or drafted < 0:
        raise InputError(f"num_speculative_tokens must be a whole number, got {drafted!r}")
    return drafted
