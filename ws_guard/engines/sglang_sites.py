"""SGLang's workspaces that trtllm-gen carves from, as data.

Read in the wheel 0.5.23. Sizes in bytes, sources are paths inside the package.
"""

from __future__ import annotations

from ws_guard.sizing.layouts import MIB

from .sites import Engine, EngineRelease, Site

ENV = "SGLANG_FLASHINFER_WORKSPACE_SIZE"

_ATTENTION = "srt/layers/attention"
_MLA = f"{_ATTENTION}/trtllm_mla_backend.py"
_MHA = f"{_ATTENTION}/trtllm_mha_backend.py"
_DSA = f"{_ATTENTION}/dsa_backend.py"

#: On 160 GB and more: chunks of 16,384 tokens; requests are between 2,048 and 4,096 by free memory.
RELEASES: tuple[EngineRelease, ...] = (EngineRelease("0.5.23", "0.7.2", 16_384, 4_096, seen=True),)
#: DeepSeek-V4 models run at most this many requests unless told otherwise.
DSV4_MAX_RUNNING_REQUESTS = 256
#: `max_prefill_tokens`, the bound of a prefill step where chunked prefill is off.
MAX_PREFILL_TOKENS = 16_384

#: Models for which trtllm_mla is the default on SM100; other MLA models default to flashinfer,
#: which carves nothing here.
TRTLLM_MLA_ARCHITECTURES = (
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "KimiK3",
    "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
    "GlmMoeDsaForCausalLM",
    "Glm5NextForConditionalGeneration",
    "HYV4ForCausalLM",
    "LongcatFlashForCausalLM",
    "Dots3NoteForCausalLM",
)

_MLA_DECODE = Site(
    workspace="trtllm_mla_decode",
    since="0.5.23",
    source=_MLA,
    holder="trtllm_mla_zero_workspace",
    kinds=("mla",),
    entry="decode",
    size="fixed",
    size_bytes=150 * MIB,
    lse="dcp",
    heads="gathered",
    batch="requests",
    q_len="draft",
    selector="attention",
    backends=("trtllm_mla",),
    default_kinds=("mla",),
    architectures=TRTLLM_MLA_ARCHITECTURES,
    called="trtllm_batch_decode_with_kv_cache_mla",
    also_seen=("DEFAULT_WORKSPACE_SIZE_MB = 150",),
    note="150 MiB whatever the variable says; DCP asks LSE unguarded",
)
_MHA_DECODE = Site(
    workspace="trtllm_mha_decode",
    since="0.5.23",
    source=_MHA,
    holder="trtllm_mha_zero_workspace",
    kinds=("gqa",),
    entry="decode",
    size="env",
    size_bytes=512 * MIB,
    env=ENV,
    lse="never",
    heads="rank",
    batch="requests",
    q_len="draft",
    selector="attention",
    backends=("trtllm_mha",),
    default_kinds=("gqa",),
    called="trtllm_batch_decode_with_kv_cache",
    also_entries=("xqa",),
    also_seen=("DEFAULT_WORKSPACE_SIZE_MB = 512", "is_xqa_impl = get_platform().is_sm90"),
    note="shared with fmha_v2; no LSE; XQA on SM90 and SM120, with 8 MiB more",
)
_DSA_ROWS = Site(
    workspace="dsa",
    since="0.5.23",
    source=_DSA,
    holder="dsa_trtllm_workspace",
    kinds=("sparse_mla",),
    entry="decode",
    size="env_x_dcp",
    size_bytes=384 * MIB,
    env=ENV,
    lse="dcp",
    heads="gathered",
    batch="tokens",
    q_len="one",
    selector="attention",
    backends=("dsa", "nsa"),
    default_kinds=("sparse_mla",),
    guard_reserve_bytes=128 * MIB,
    called="trtllm_batch_decode_with_kv_cache_mla",
    also_seen=("envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.get() * self.dcp_size",),
    note="the engine cuts the rows under DCP so that the slab and 128 MiB fit",
)

SITES: tuple[Site, ...] = (
    _MLA_DECODE,
    _MLA_DECODE._replace(
        workspace="trtllm_mla_prefix",
        entry="ragged",
        lse="always",
        heads="rank",
        batch="prefill_requests",
        q_len="step",
        called="trtllm_ragged_attention_deepseek",
        also_seen=("DEFAULT_WORKSPACE_SIZE_MB = 150", "return_lse=True"),
        note="the same buffer; chunks of a cached prefix always ask LSE, unguarded",
    ),
    _MHA_DECODE,
    _MHA_DECODE._replace(
        workspace="trtllm_mha_prefill",
        entry="context",
        also_entries=(),
        batch="prefill_requests",
        q_len="step",
        called="trtllm_batch_context_with_kv_cache",
        note="the same buffer; no LSE",
    ),
    _DSA_ROWS,
    _DSA_ROWS._replace(
        workspace="dsa_prefill",
        entry="ragged",
        lse="never",
        heads="rank",
        batch="prefill_requests",
        q_len="step",
        guard_reserve_bytes=None,
        called="trtllm_ragged_attention_deepseek",
        also_seen=("return_lse=False",),
        note="the same buffer; no LSE",
    ),
    Site(
        workspace="dsv4",
        since="0.5.23",
        source=f"{_ATTENTION}/deepseek_v4_trtllm_backend.py",
        holder="trtllm_dsv4_zero_workspace",
        kinds=("dsv4",),
        entry="dsv4",
        size="fixed",
        size_bytes=128 * MIB,
        lse="never",
        heads="rank",
        batch="tokens",
        q_len="one",
        selector="dsv4",
        backends=("trtllm",),
        default_kinds=(),
        called="trtllm_batch_decode_sparse_mla_dsv4",
        also_seen=("_TRTLLM_GEN_WORKSPACE_SIZE_MB = 128",),
        note="only with --dsv4-attn-backend trtllm; no LSE",
    ),
)

SGLANG = Engine(
    name="sglang",
    distribution="sglang",
    env=ENV,
    releases=RELEASES,
    sites=SITES,
    env_note=f"{ENV} sizes the dense (trtllm_mha) and the sparse (dsa) workspace; trtllm_mla's "
    "150 MiB and DeepSeek-V4's 128 MiB do not follow it",
    tokens_flag="--chunked-prefill-size",
    seqs_flag="--max-running-requests",
    assumed_kind="mla",
    assumed_architecture=TRTLLM_MLA_ARCHITECTURES[0],
    assumed_note="heads alone do not tell the model: judged as dense MLA (trtllm_mla), whose "
    "150 MiB nothing guards; pass --model, or --attention sparse_mla, gqa or dsv4",
)
