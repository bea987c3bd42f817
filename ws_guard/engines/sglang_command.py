"""An SGLang launch command as a `Launch`. Flags as in `srt/arg_groups/fields` of 0.5.23."""

from __future__ import annotations

from typing import Any

from .flags import Flag, human_number, json_object, whole_number
from .sglang_sites import DSV4_MAX_RUNNING_REQUESTS, MAX_PREFILL_TOKENS
from .sites import EngineRelease, ModelKind

# `--tp` and `--dp` are beginnings that argparse completes; `--dcp` and `--pp` were, once.
_PARALLEL = (
    ("tp", ("--tp-size", "--tensor-parallel-size", "--tp")),
    ("dcp", ("--dcp-size", "--decode-context-parallel-size", "--dcp")),
    ("pcp", ("--attn-cp-size", "--attention-context-parallel-size")),
    ("dp", ("--dp-size", "--data-parallel-size", "--dp")),
    ("pp", ("--pp-size", "--pipeline-parallel-size", "--pp")),
    ("attention_dp", ("--attn-dp-size", "--attention-data-parallel-size")),
)

FLAGS: tuple[Flag, ...] = (
    *(Flag(spellings, field, whole_number) for field, spellings in _PARALLEL),
    Flag(("--model-path", "--model"), "model", str),
    Flag(("--revision",), "revision", str),
    Flag(("--download-dir",), "cache", str),
    Flag(("--config",), "config", str),
    Flag(("--json-model-override-args",), "overrides", json_object),
    Flag(("--chunked-prefill-size",), "max_num_batched_tokens", whole_number),
    Flag(("--max-prefill-tokens",), "max_prefill_tokens", human_number),
    Flag(("--max-running-requests",), "max_num_seqs", whole_number),
    Flag(("--prefill-max-requests",), "prefill_requests", whole_number),
    Flag(("--context-length",), "max_len", whole_number),
    Flag(("--kv-cache-dtype",), "kv_cache_dtype", str),
    Flag(("--attention-backend",), "attention_backend", str),
    Flag(("--decode-attention-backend",), "decode_backend", str),
    Flag(("--prefill-attention-backend",), "prefill_attention_backend", str),
    Flag(("--dsa-decode-backend",), "dsa_decode_backend", str),
    Flag(("--dsa-prefill-backend",), "dsa_prefill_backend", str),
    Flag(("--dsv4-attn-backend",), "dsv4_backend", str),
    Flag(("--speculative-num-draft-tokens",), "verified_tokens", whole_number),
    Flag(("--enable-dp-attention",), "dp_attention", None, True),
    Flag(("--disable-chunked-prefix-cache",), "no_prefix_chunks", None, True),
)

_DECODE_SITES = ("trtllm_mla_decode", "trtllm_mha_decode")
_PREFILL_SITES = ("trtllm_mla_prefix", "trtllm_mha_prefill")


def launch_fields(
    values: dict[str, Any], release: EngineRelease, kind: ModelKind, max_len: int
) -> dict[str, Any]:
    """The fields of a `Launch` from flag values; `max_len` is the model's own context.

    Defaults are those of a GPU of 160 GB and more.
    """
    fields = {name: values[name] for name, _ in _PARALLEL if name in values}
    if values.get("dp_attention") and "attention_dp" not in values:
        # The deprecated spelling: --dp-size N --enable-dp-attention is --attn-dp-size N.
        fields["attention_dp"] = fields.get("dp", 1)
    seqs = DSV4_MAX_RUNNING_REQUESTS if kind == "dsv4" else release.max_num_seqs
    backends, skipped = _backends(values, kind)
    return {
        **fields,
        "max_num_batched_tokens": _chunk(values, release, values.get("max_len") or max_len),
        "max_num_seqs": values.get("max_num_seqs", seqs),
        "prefill_requests": values.get("prefill_requests"),
        "draft_tokens": max(0, values.get("verified_tokens", 1) - 1),
        "attention_backends": backends,
        "dsv4_backend": values.get("dsv4_backend"),
        "kv_cache_dtype": values.get("kv_cache_dtype", "auto"),
        "skipped_sites": skipped,
    }


def _chunk(values: dict[str, Any], release: EngineRelease, max_len: int) -> int:
    """Tokens of the largest prefill step; without chunks the larger of limit and context."""
    chunk = values.get("max_num_batched_tokens", release.max_num_batched_tokens)
    if chunk > 0:
        return int(chunk)
    return max(int(values.get("max_prefill_tokens", MAX_PREFILL_TOKENS)), max_len)


def _backends(values: dict[str, Any], kind: ModelKind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(chosen attention backends, sites that a choice for one phase takes out)."""
    common = values.get("attention_backend")
    decode = values.get("decode_backend") or common
    prefill = values.get("prefill_attention_backend") or common
    chosen = tuple(dict.fromkeys(name for name in (decode, prefill) if name))
    skipped: list[str] = []
    if decode and not decode.startswith("trtllm"):
        skipped += _DECODE_SITES
    if (prefill and not prefill.startswith("trtllm")) or values.get("no_prefix_chunks"):
        skipped += [_PREFILL_SITES[0]]
    if prefill and not prefill.startswith("trtllm"):
        skipped += [_PREFILL_SITES[1]]
    dsa = [values.get("dsa_decode_backend"), values.get("dsa_prefill_backend")]
    if kind == "sparse_mla" and all(name not in (None, "trtllm") for name in dsa):
        skipped.append("dsa")
    return chosen, tuple(skipped)
