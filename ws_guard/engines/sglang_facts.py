"""What an SGLang worker says about itself: its published configuration and its model runner.

`context` is SGLang's module `runtime_context`, where every process publishes its configuration.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ws_guard.foreign import Foreign
from ws_guard.sizing import DEFAULT_SM_COUNT

from .launch import Launch
from .model import Model, model_of
from .releases import engine_named, find_release
from .sglang_command import launch_fields
from .sglang_sites import ENV

CONTEXT_MODULE = "sglang.srt.runtime_context"


def version() -> str:
    """SGLang's version."""
    return str(getattr(sys.modules.get("sglang"), "__version__", ""))


def identity(context: Foreign) -> dict[str, Any]:
    """Labels of a worker: its data-parallel replica, its rank inside it.

    Attention data parallelism is inside a replica, as vLLM's tensor parallelism is.
    """
    parallel = context.get_parallel()
    return {
        "engine": str(_told(parallel, "dp_rank") or 0),
        "rank": str(parallel.tp_size * parallel.pp_rank + parallel.tp_rank),
        "expected_workers": expected_workers(parallel),
        "info": {
            "engine_name": "sglang",
            "engine_version": version(),
            "model_name": _model_name(context),
            "tp": str(parallel.tp_size),
            "dcp": str(parallel.attn_dcp_size),
            "pcp": str(parallel.attn_cp_size),
            "dp": str(parallel.dp_size),
        },
    }


def expected_workers(parallel: Foreign) -> int:
    """Workers of this launch on this host; of several hosts each has its share of one replica."""
    ranks = int(parallel.tp_size * parallel.pp_size)
    if parallel.nnodes > 1:
        return max(1, ranks // int(parallel.nnodes))
    return ranks * int(parallel.dp_size)


def _model_name(context: Foreign) -> str:
    return str(_told(context.get_serving(), "served_model_name") or context.get_model().model_path)


def _told(bag: Foreign, name: str) -> Foreign:
    """A published value; None where this release or this process has none of that name."""
    try:
        return getattr(bag, name)
    except Exception:  # noqa: BLE001 - SGLang raises several kinds for what is not published
        return None


def launch_of(context: Foreign, runner: Foreign, sm_count: int | None) -> Launch:
    """The launch of a running worker, from its model runner once the backends are made."""
    parallel, model = context.get_parallel(), _model(context, runner)
    release = find_release(engine_named("sglang"), version())[0]
    values = _values(context, runner)
    fields = launch_fields(values, release, model.kind, int(runner.model_config.context_len))
    # The published chunk and the runner's requests are those of one scheduler already.
    replicas = int(parallel.attn_dp_size)
    fields["max_num_batched_tokens"] *= replicas
    fields["max_num_seqs"] *= replicas
    return Launch(
        engine="sglang",
        version=version(),
        model=model,
        workspace_bytes=_explicit_workspace_bytes(),
        sm_count=sm_count or DEFAULT_SM_COUNT,
        **fields,
    ).checked()


def _values(context: Foreign, runner: Foreign) -> dict[str, Any]:
    """What the command reader would have read from flags, as it came to be."""
    parallel, schedule = context.get_parallel(), context.get_schedule()
    kernel = context.get_exec().kernel
    told = {
        "tp": parallel.tp_size,
        "dcp": parallel.attn_dcp_size,
        "pcp": parallel.attn_cp_size,
        "dp": parallel.dp_size,
        "pp": parallel.pp_size,
        "attention_dp": parallel.attn_dp_size,
        "max_num_batched_tokens": _told(schedule, "chunked_prefill_size") or -1,
        "max_prefill_tokens": _told(schedule, "max_prefill_tokens"),
        "prefill_requests": _told(schedule, "prefill_max_requests"),
        "no_prefix_chunks": _told(schedule, "disable_chunked_prefix_cache"),
        "max_num_seqs": runner.max_running_requests,
        "verified_tokens": _told(context.get_spec(), "speculative_num_draft_tokens"),
        "decode_backend": runner.decode_attention_backend_str,
        "prefill_attention_backend": runner.prefill_attention_backend_str,
        "dsa_decode_backend": _told(kernel, "dsa_decode_backend"),
        "dsa_prefill_backend": _told(kernel, "dsa_prefill_backend"),
        "dsv4_backend": _told(kernel, "dsv4_attn_backend"),
    }
    return {name: value for name, value in told.items() if value is not None}


def _explicit_workspace_bytes() -> int | None:
    text = os.environ.get(ENV)
    return int(text) if text else None


def _model(context: Foreign, runner: Foreign) -> Model:
    config = runner.model_config
    text = getattr(config, "hf_text_config", None) or config.hf_config
    convert = getattr(text, "to_dict", None)
    told = dict(convert() if callable(convert) else vars(text))
    told["num_attention_heads"] = int(config.num_attention_heads)
    told["architectures"] = list(getattr(config.hf_config, "architectures", None) or [""])
    return model_of(_model_name(context), told)
