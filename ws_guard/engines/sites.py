"""What a workspace site is: one place in an engine that hands a workspace to a native call.

The tables are `vllm_sites` and `sglang_sites`; here are their words. Plan, plugins and docs read
them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ws_guard.sizing import Entry
from ws_guard.sizing.layouts import MIB

#: What a model's attention is, as far as it decides which sites are live.
ModelKind = Literal["sparse_mla", "mla", "gqa", "dsv4"]
MODEL_KINDS: tuple[ModelKind, ...] = ("sparse_mla", "mla", "gqa", "dsv4")

#: fixed: a constant; env: the variable or the default; computed: sized for the step, the variable
#: overrides it; env_x_dcp: the variable times the DCP size.
SizeRule = Literal["fixed", "env", "computed", "env_x_dcp"]
#: Who asks for LSE: nobody, DCP, or every call.
LseRule = Literal["never", "dcp", "always"]
#: Heads of one rank, gathered over the DCP group, or one rank's padded to 64 or 128.
HeadsRule = Literal["rank", "gathered", "padded"]
#: What a row is: a token of the step, a request, a request of a prefill step.
BatchRule = Literal["tokens", "requests", "prefill_requests"]
#: Query tokens of a row: 1; 1 + drafted tokens; all tokens of a step.
QueryRule = Literal["one", "draft", "step"]
#: Which engine flag selects the backend that holds the site.
Selector = Literal["attention", "prefill", "dsv4"]


class Site(NamedTuple):
    """One row: a site as it is in the releases from `since` on, up to `before` (exclusive).

    `holder` names the buffer: sites with one holder share it and its bytes count once. `backends`
    are the values of the `selector` flag that make the site live; `default_kinds` the models for
    which it is live without that flag, limited to `default_dims` (nope, rope and value dimensions
    of a head) and to `architectures` (beginnings of model classes) where those are given.
    `guard_reserve_bytes` is set where the engine itself hands over no more rows than fit beside
    that reserve. `also_entries` are native entries that the same call reaches on other GPUs than
    the planned ones: it is the same site. `also_seen` are texts of the source that hold the rules.
    """

    workspace: str
    since: str
    source: str
    holder: str
    kinds: tuple[ModelKind, ...]
    entry: Entry
    size: SizeRule
    size_bytes: int
    lse: LseRule
    heads: HeadsRule
    batch: BatchRule
    q_len: QueryRule
    selector: Selector
    backends: tuple[str, ...]
    default_kinds: tuple[ModelKind, ...]
    called: str
    before: str | None = None
    lse_size_bytes: int | None = None
    env: str | None = None
    default_dims: tuple[int, int, int] | None = None
    architectures: tuple[str, ...] = ()
    max_batch: int | None = None
    guard_reserve_bytes: int | None = None
    refuses_pcp_with_dcp: bool = False
    also_entries: tuple[Entry, ...] = ()
    also_seen: tuple[str, ...] = ()
    note: str = ""

    def times(self, dcp: int) -> int:
        """How often the variable's value the workspace has, under a DCP group of that size."""
        return dcp if self.size == "env_x_dcp" else 1


class EngineRelease(NamedTuple):
    """An engine release, the FlashInfer release it ships, and its defaults on a B200.

    `max_num_batched_tokens` is the API server's; `seen` whether its source was read (else the
    larger default of its neighbours stands).
    """

    version: str
    flashinfer: str
    max_num_batched_tokens: int
    max_num_seqs: int
    seen: bool = False


class Engine(NamedTuple):
    """All that is known of an engine: the table's head."""

    name: str
    distribution: str
    env: str
    releases: tuple[EngineRelease, ...]
    sites: tuple[Site, ...]
    env_note: str
    tokens_flag: str
    seqs_flag: str
    #: What heads alone are judged as, and why.
    assumed_kind: ModelKind
    assumed_architecture: str
    assumed_note: str
    #: The first release with the variable, and what stands in its place before; None: not known.
    env_since: str | None = None
    constant: str = ""


#: Slab bytes of one head, row and query token: sizeof(float2).
STATS_BYTES = 8
#: Multiple to which the stats slab rounds the query tokens of a row up.
STATS_Q_ROUNDING = 256
STATS_GUARD_BYTES = MIB
