"""Judges every workspace site of a launch: is it live, does it hold its worst step?"""

from __future__ import annotations

from typing import NamedTuple

from ws_guard.sizing import Call, InputError, Layout, Plan, judge
from ws_guard.sizing.slabs import ceil_div

from .launch import Launch
from .model import DEFAULT_INDEX_TOPK
from .sites import STATS_BYTES, STATS_GUARD_BYTES, STATS_Q_ROUNDING, Site


class Judged(NamedTuple):
    """A site of a launch: `live` where the launch uses it, and `why` it does or does not."""

    site: Site
    live: bool
    why: str
    plan: Plan


def judge_site(site: Site, launch: Launch, layouts: tuple[Layout, ...]) -> Judged:
    """One site under a launch; of several layouts the worse counts."""
    live, why = liveness(site, launch)
    call = planned_call(site, launch)
    size, base = workspace_bytes(site, launch), default_bytes(site, launch)
    plans = [judge(call, layout, size, base) for layout in layouts]
    return Judged(site, live, why, min(plans, key=lambda each: (each.fits, each.margin_bytes)))


def liveness(site: Site, launch: Launch) -> tuple[bool, str]:
    """Whether a launch uses a site, and the reason in words."""
    model = launch.model
    if model.kind not in site.kinds:
        return False, f"only {' or '.join(site.kinds)} models"
    if site.workspace in launch.skipped_sites:
        return False, "switched off by a flag"
    if site.refuses_pcp_with_dcp and launch.pcp > 1 and launch.dcp > 1:
        return False, "its backend refuses PCP with DCP"
    if site.lse == "dcp" and site.guard_reserve_bytes and site.size == "env" and launch.dcp == 1:
        return False, "only under DCP"
    chosen = _chosen(site, launch)
    if chosen:
        hit = [name for name in chosen if name in site.backends]
        if hit:
            return True, f"{hit[0]} is chosen"
        return False, f"{', '.join(chosen)} is chosen" if site.backends else "not by default"
    return _default(site, launch)


def _chosen(site: Site, launch: Launch) -> tuple[str, ...]:
    """What the launch's flag for this kind of backend says; empty where it says nothing."""
    if site.selector == "attention":
        return launch.attention_backends
    value = launch.prefill_backend if site.selector == "prefill" else launch.dsv4_backend
    return (value,) if value else ()


def _default(site: Site, launch: Launch) -> tuple[bool, str]:
    model = launch.model
    only = f"only with {' or '.join(site.backends)}" if site.backends else "only for its models"
    if model.kind not in site.default_kinds:
        return False, only
    if site.architectures and not model.architecture.startswith(site.architectures):
        return False, only
    if site.default_dims and model.prefill_dims != site.default_dims:
        dims = "/".join(map(str, site.default_dims))
        return False, f"{only}, or with head dimensions {dims}"
    return True, "the default"


def planned_call(site: Site, launch: Launch) -> Call:
    """The native call of the worst step: batch and query tokens each at their bound."""
    heads, q_len = kernel_heads(site, launch), _q_len(site, launch)
    lse = site.lse == "always" or (site.lse == "dcp" and launch.dcp > 1)
    batch = _batch(site, launch)
    if site.guard_reserve_bytes is not None and lse:
        batch = min(batch, _guarded_rows(site, launch, heads, q_len))
    return Call(
        entry=site.entry,
        heads=heads,
        batch=batch,
        q_len=q_len,
        lse=lse,
        sm_count=launch.sm_count,
        dims=launch.model.head_dims if site.entry in ("decode", "dsv4") else None,
    ).checked()


def kernel_heads(site: Site, launch: Launch) -> int:
    """Query heads that the kernel of a site sees."""
    heads = launch.heads_per_rank
    if site.heads == "gathered":
        return heads * launch.dcp
    if site.heads == "padded":
        return 64 if heads <= 64 else max(128, heads)
    return heads


def _batch(site: Site, launch: Launch) -> int:
    batch = launch.step_tokens if site.batch == "tokens" else launch.step_requests
    if site.batch == "prefill_requests":
        # Each request of a prefill step brings a token at least.
        batch = min(batch, launch.step_tokens, launch.prefill_requests or batch)
    return batch if site.max_batch is None else min(batch, site.max_batch)


def _q_len(site: Site, launch: Launch) -> int:
    if site.q_len == "one":
        return 1
    if site.q_len == "draft":
        return 1 + launch.draft_tokens
    if launch.model.kind == "sparse_mla":
        # Longer prompts go the sparse way.
        return min(launch.step_tokens, launch.model.index_topk or DEFAULT_INDEX_TOPK)
    return launch.step_tokens


def _guarded_rows(site: Site, launch: Launch, heads: int, q_len: int) -> int:
    """Rows that the engine itself hands over at most: those whose slab fits beside the reserve."""
    reserve = site.guard_reserve_bytes or 0
    row = STATS_BYTES * heads * -(-q_len // STATS_Q_ROUNDING) * STATS_Q_ROUNDING
    return max(1, (workspace_bytes(site, launch) - reserve) // row)


def default_bytes(site: Site, launch: Launch) -> int:
    """The site's size without a slab: what it has where nobody sets the variable."""
    if site.lse_size_bytes is not None and launch.dcp > 1:
        return site.lse_size_bytes
    return site.size_bytes * site.times(launch.dcp)


def workspace_bytes(site: Site, launch: Launch) -> int:
    """The size that the launch gives a site, in bytes."""
    if site.size != "fixed" and launch.workspace_bytes is not None:
        return launch.workspace_bytes * site.times(launch.dcp)
    base = default_bytes(site, launch)
    if site.size == "computed" and launch.dcp > 1:
        rows = kernel_heads(site, launch) * launch.max_num_batched_tokens
        return base + STATS_BYTES * rows * STATS_Q_ROUNDING + STATS_GUARD_BYTES
    return base


def variable_bytes(judged: Judged, launch: Launch) -> int:
    """The least value of the engine's variable that gives a site what is recommended."""
    return ceil_div(judged.plan.recommended_workspace_bytes, judged.site.times(launch.dcp))


def worst_of(judged: list[Judged]) -> Judged:
    """The live site that decides: one that does not fit before one that does, then by margin."""
    live = [each for each in judged if each.live]
    if not live:
        raise InputError("no site is live")
    return min(live, key=lambda each: (each.plan.fits, each.plan.margin_bytes))
