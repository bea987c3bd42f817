"""A launch: what a command (or the flags of `plan`) says about a deployment."""

from __future__ import annotations

from typing import NamedTuple

from ws_guard.sizing import DEFAULT_SM_COUNT, InputError
from ws_guard.sizing.call import MAX_SM_COUNT
from ws_guard.sizing.errors import whole

from .model import Model

_MOST = (1 << 31) - 1
_MAX_PARALLEL = 1 << 20
#: Bytes of a cached element by the engines' `--kv-cache-dtype`; the model's own where not listed.
_KV_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "bf16": 2, "bfloat16": 2}
#: vLLM's packed FP8 layout of sparse MLA: 656 bytes for each token and layer.
_FP8_DS_MLA_BYTES = 656
#: The indexer of sparse MLA caches an FP8 key and a scale for each token and layer.
_INDEX_SCALE_BYTES = 4


class Launch(NamedTuple):
    """A deployment in the command's numbers, defaults filled in; sizes in bytes.

    `pcp` is SGLang's attention context parallelism, `attention_dp` its attention data parallelism;
    SGLang's `tp` counts the whole group. `workspace_bytes` is the environment's value, None where
    unset. `prefill_requests` bounds the requests of a prefill step, `draft_tokens` are the extra
    tokens of a decode row.
    """

    engine: str
    version: str
    model: Model
    tp: int = 1
    dcp: int = 1
    pcp: int = 1
    dp: int = 1
    pp: int = 1
    attention_dp: int = 1
    max_num_batched_tokens: int = 1
    max_num_seqs: int = 1
    prefill_requests: int | None = None
    draft_tokens: int = 0
    workspace_bytes: int | None = None
    attention_backends: tuple[str, ...] = ()
    prefill_backend: str | None = None
    dsv4_backend: str | None = None
    kv_cache_dtype: str = "auto"
    sm_count: int = DEFAULT_SM_COUNT
    skipped_sites: tuple[str, ...] = ()
    #: Nobody told the release and none is installed: it is the newest known.
    version_assumed: bool = False

    @property
    def attention_tp(self) -> int:
        """Ranks that share the query heads. SGLang's group holds the other dimensions as well."""
        if self.engine == "sglang":
            return max(1, self.tp // (self.attention_dp * self.pcp))
        return self.tp

    @property
    def heads_per_rank(self) -> int:
        """Query heads of one rank, counted up where they do not divide."""
        return -(-self.model.heads // self.attention_tp)

    @property
    def step_tokens(self) -> int:
        """Tokens of one scheduler's largest step; attention data parallelism divides a chunk."""
        return max(1, self.max_num_batched_tokens // self.attention_dp)

    @property
    def step_requests(self) -> int:
        """Requests of one scheduler's largest step: each has a token at least in vLLM."""
        return max(1, self.max_num_seqs // self.attention_dp)

    def checked(self) -> Launch:
        """The launch itself, or an `InputError` that names what none can have."""
        whole("heads", self.model.heads, least=1, most=_MOST)
        for name in ("tp", "dcp", "pcp", "dp", "pp", "attention_dp"):
            whole(name, getattr(self, name), least=1, most=_MAX_PARALLEL)
        group = self.tp * self.pcp if self.engine == "vllm" else self.attention_tp
        if group % self.dcp:
            words = "tp x pcp" if self.engine == "vllm" else "the attention ranks"
            raise InputError(f"dcp {self.dcp} must divide {words} = {group}; change dcp or tp")
        if self.engine == "sglang" and self.tp % (self.attention_dp * self.pcp):
            raise InputError(
                f"attention dp {self.attention_dp} x context parallel {self.pcp} must divide "
                f"tp {self.tp}: in SGLang they share its ranks"
            )
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            whole(name, getattr(self, name), least=1, most=_MOST)
        if self.prefill_requests is not None:
            whole("prefill_requests", self.prefill_requests, least=1, most=_MOST)
        whole("draft_tokens", self.draft_tokens, least=0, most=1 << 16)
        if self.workspace_bytes is not None:
            whole("workspace_bytes", self.workspace_bytes, least=1)
        whole("sm_count", self.sm_count, least=1, most=MAX_SM_COUNT)
        return self


def kv_bytes_per_token(launch: Launch) -> int | None:
    """Bytes that one token takes in a rank's KV cache; None where the config does not tell.

    MLA caches one latent for all heads. Hybrid and DeepSeek-V4 caches are not that simple: None.
    """
    model = launch.model
    layers = -(-model.layers // launch.pp)
    if not layers or model.kind == "dsv4":
        return None
    element = _KV_BYTES.get(launch.kv_cache_dtype, model.dtype_bytes)
    if model.kind == "gqa":
        kv_heads = max(1, model.kv_heads // launch.attention_tp)
        return layers * 2 * kv_heads * model.head_dim * element
    if launch.kv_cache_dtype == "fp8_ds_mla":
        latent = _FP8_DS_MLA_BYTES
    else:
        latent = (model.kv_lora_rank + model.qk_rope_head_dim) * element
    index = model.index_head_dim + _INDEX_SCALE_BYTES if model.index_topk else 0
    return layers * (latent + index)


def kv_tokens_lost(launch: Launch, extra_bytes: int) -> int | None:
    """KV-cache tokens of an engine that `extra_bytes` on each GPU take; DCP spreads a token."""
    per_token = kv_bytes_per_token(launch)
    if per_token is None or per_token <= 0:
        return None
    return -(-extra_bytes // per_token) * launch.dcp
