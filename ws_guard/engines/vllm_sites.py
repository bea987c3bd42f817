"""vLLM's workspaces that trtllm-gen carves from, as data.

Read in the wheels 0.26.0 and 0.33.0; the releases between are from the engine's history. Sizes in
bytes, sources are paths inside the package.
"""

from __future__ import annotations

from ws_guard.sizing.layouts import MIB

from .sites import Engine, EngineRelease, Site

ENV = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
DEFAULT_BYTES = 394 * MIB

_BACKENDS = "v1/attention/backends"
_SPARSE = f"{_BACKENDS}/mla/flashinfer_mla_sparse.py"
_DENSE = f"{_BACKENDS}/flashinfer.py"
_MLA = f"{_BACKENDS}/mla/flashinfer_mla.py"

# FlashInfer as each release pins it. On 160 GB and more the API server's default went from 8,192
# tokens (0.26.0) to 16,384 (0.33.0).
RELEASES: tuple[EngineRelease, ...] = (
    EngineRelease("0.25.0", "0.6.13", 8_192, 1_024),
    EngineRelease("0.25.1", "0.6.13", 8_192, 1_024),
    EngineRelease("0.26.0", "0.6.14", 8_192, 1_024, seen=True),
    EngineRelease("0.27.1", "0.6.16.post3", 16_384, 1_024),
    EngineRelease("0.28.0", "0.6.16.post3", 16_384, 1_024),
    EngineRelease("0.29.0", "0.6.18", 16_384, 1_024),
    EngineRelease("0.30.0", "0.6.18.post1", 16_384, 1_024),
    EngineRelease("0.31.0", "0.7.0.post1", 16_384, 1_024),
    EngineRelease("0.32.0", "0.7.0.post1", 16_384, 1_024),
    EngineRelease("0.33.0", "0.7.2.post1", 16_384, 1_024, seen=True),
)

_SPARSE_MLA = Site(
    workspace="sparse_mla",
    since="0.25.0",
    before="0.30.0",
    source=_SPARSE,
    holder="_fi_sparse_workspace",
    kinds=("sparse_mla",),
    entry="decode",
    size="env",
    size_bytes=DEFAULT_BYTES,
    env=ENV,
    lse="dcp",
    heads="gathered",
    batch="tokens",
    q_len="one",
    selector="attention",
    backends=("FLASHINFER_MLA_SPARSE",),
    default_kinds=("sparse_mla",),
    called="trtllm_batch_decode_with_kv_cache_mla",
    note="every token of the step is a row, prefill included",
)
# 0.26.0 prefers FLASH_ATTN for every model, 0.33.0 TRTLLM_RAGGED for GLM's head dimensions; between
# them the worse is assumed.
_RAGGED = Site(
    workspace="mla_prefill_ragged",
    since="0.25.0",
    before="0.27.0",
    source=f"{_BACKENDS}/mla/prefill/trtllm_ragged.py",
    holder="current_workspace_manager",
    kinds=("mla", "sparse_mla"),
    entry="ragged",
    size="env",
    size_bytes=DEFAULT_BYTES,
    env=ENV,
    lse="always",
    heads="rank",
    batch="prefill_requests",
    q_len="step",
    selector="prefill",
    backends=("TRTLLM_RAGGED",),
    default_kinds=(),
    called="trtllm_ragged_attention_deepseek",
    also_seen=("return_lse=True", '"TRTLLM_RAGGED"'),
    note="context chunks ask LSE unguarded; sparse models only up to index_topk tokens",
)
_MLA_DECODE = Site(
    workspace="mla_decode",
    since="0.25.0",
    before="0.29.0",
    source=_MLA,
    holder="_fi_workspace",
    kinds=("mla",),
    entry="decode",
    size="fixed",
    size_bytes=128 * MIB,
    lse_size_bytes=256 * MIB,
    lse="dcp",
    heads="gathered",
    batch="requests",
    q_len="draft",
    selector="attention",
    backends=("FLASHINFER_MLA",),
    default_kinds=("mla",),
    called="trtllm_batch_decode_with_kv_cache_mla",
    also_seen=(
        "FLASHINFER_MLA_WORKSPACE_BUFFER_SIZE = 128 * 1024 * 1024",
        "FLASHINFER_MLA_LSE_WORKSPACE_BUFFER_SIZE = 256 * 1024 * 1024",
    ),
    note="128 MiB, 256 MiB with LSE; no setting changes it",
)
_DENSE_DECODE = Site(
    workspace="dense_decode",
    since="0.25.0",
    source=_DENSE,
    holder="trtllm_workspace_buffer",
    kinds=("gqa",),
    entry="decode",
    size="env",
    size_bytes=DEFAULT_BYTES,
    env=ENV,
    lse="dcp",
    heads="gathered",
    batch="requests",
    q_len="draft",
    selector="attention",
    backends=("FLASHINFER",),
    default_kinds=("gqa",),
    called="trtllm_batch_decode_with_kv_cache",
    also_entries=("xqa",),
    also_seen=('XQA = "xqa"',),
    note="LSE under DCP without a size check; XQA on SM90 and SM120",
)

SITES: tuple[Site, ...] = (
    _SPARSE_MLA,
    _SPARSE_MLA._replace(
        since="0.30.0",
        before="0.33.0",
        size="computed",
        note="sized for the step at DCP > 1; an explicit value of the variable wins",
    ),
    _SPARSE_MLA._replace(
        since="0.33.0",
        before=None,
        size="computed",
        refuses_pcp_with_dcp=True,
        also_seen=(
            "compute_trtllm_sparse_mla_workspace_bytes",
            "_DEFAULT_WORKSPACE_BUFFER_SIZE = 394 * 1024 * 1024",
            "does not support combined PCP+DCP",
        ),
        note="sized for the step at DCP > 1; an explicit value of the variable wins",
    ),
    _RAGGED,
    _RAGGED._replace(
        since="0.27.0",
        before=None,
        default_kinds=("mla", "sparse_mla"),
        default_dims=(192, 64, 256),
    ),
    _MLA_DECODE,
    _MLA_DECODE._replace(
        since="0.29.0",
        before=None,
        lse="never",
        also_seen=(*_MLA_DECODE.also_seen, 'decode_backend = "cute-dsl"'),
        note="DCP runs cute-dsl, which carves nothing; 256 MiB there all the same",
    ),
    _DENSE_DECODE,
    _DENSE_DECODE._replace(
        workspace="dense_prefill",
        entry="context",
        lse="never",
        heads="rank",
        batch="prefill_requests",
        q_len="step",
        called="trtllm_batch_context_with_kv_cache",
        also_entries=(),
        note="the same buffer; asks no LSE and carves nothing that grows",
    ),
    _DENSE_DECODE._replace(
        workspace="dense_dcp_context",
        since="0.33.0",
        entry="context",
        batch="prefill_requests",
        q_len="step",
        called="trtllm_batch_context_with_kv_cache",
        also_entries=(),
        guard_reserve_bytes=MIB,
        also_seen=("def fits_workspace",),
        note="the same buffer; the engine takes another path where the slab does not fit",
    ),
    Site(
        workspace="dsv4",
        since="0.25.0",
        source="models/deepseek_v4/nvidia/flashinfer_sparse.py",
        holder="_flashinfer_dsv4_workspace_by_device",
        kinds=("dsv4",),
        entry="dsv4",
        size="fixed",
        size_bytes=128 * MIB,
        lse="never",
        heads="padded",
        batch="tokens",
        q_len="one",
        selector="attention",
        backends=("FLASHINFER_MLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV41"),
        default_kinds=("dsv4",),
        called="flashinfer_trtllm_batch_decode_sparse_mla_dsv4",
        also_seen=("_FLASHINFER_DSV4_WORKSPACE_BUFFER_SIZE = 128 * 1024 * 1024",),
        note="128 MiB per device; no LSE",
    ),
    Site(
        workspace="kimi_k3_decode",
        since="0.33.0",
        source="models/kimi_k3/nvidia/specialized_decode/cutedsl/mla/prepared.py",
        holder="_FLASHINFER",
        kinds=("mla",),
        entry="decode",
        size="fixed",
        size_bytes=128 * MIB,
        lse="never",
        heads="rank",
        batch="requests",
        q_len="draft",
        selector="attention",
        backends=(),
        default_kinds=("mla",),
        architectures=("KimiK3",),
        max_batch=64,
        called="trtllm_batch_decode_with_kv_cache_mla",
        also_seen=("torch.zeros(128 << 20",),
        note="specialised decode of up to 64 rows; 128 MiB for each device and head count",
    ),
)
VLLM = Engine(
    name="vllm",
    distribution="vllm",
    env=ENV,
    releases=RELEASES,
    sites=SITES,
    env_note=f"{ENV} is read at up to five places (sparse MLA, ragged and FlashInfer MLA prefill, "
    "dense attention twice): raising it costs every live one of them",
    # By the sources of 0.11.0 and 0.11.1, whose default is that of today.
    env_since="0.11.1",
    constant=f"FLASHINFER_WORKSPACE_BUFFER_SIZE in {_DENSE}",
    tokens_flag="--max-num-batched-tokens",
    seqs_flag="--max-num-seqs",
    assumed_kind="sparse_mla",
    assumed_architecture="",
    assumed_note="heads alone do not tell the model: judged as sparse MLA (index_topk), whose rows "
    "are all tokens of a step; pass --model, or --attention mla, gqa or dsv4",
)
