"""`plan` for an engine: every workspace site of a launch judged, the worst told first."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import sizing
from .engines.judge import Judged, judge_site, worst_of
from .engines.launch import Launch, kv_tokens_lost
from .engines.releases import engine_named, find_release, sites_of
from .engines.remedy import Remedy, remedy
from .engines.sites import Engine
from .planning import resolve_layouts
from .sizing import Layout, Plan


class EnginePlan(NamedTuple):
    """The plan (worst site on top, all of them in `sites`) and the launch that it is about.

    `kv_tokens_lost` are KV-cache tokens of one engine that the extra bytes take; None where the
    model's config does not tell. `typed` is what makes the launch fit, as one would type it:
    variables to set or `unset`, flags to lower.
    """

    plan: Plan
    launch: Launch
    kv_tokens_lost: int | None
    typed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The keys of the public contract, then `launch` and `kv_tokens_lost`."""
        launch = self.launch
        told = {
            "engine": launch.engine,
            "version": launch.version,
            "model": launch.model.name,
            "attention": launch.model.kind,
            "heads": launch.model.heads,
            "tp": launch.tp,
            "dcp": launch.dcp,
            "pcp": launch.pcp,
            "dp": launch.dp,
            "max_num_batched_tokens": launch.max_num_batched_tokens,
            "max_num_seqs": launch.max_num_seqs,
            "workspace_bytes": launch.workspace_bytes,
        }
        return {
            **self.plan._asdict(),
            "launch": told,
            "kv_tokens_lost": self.kv_tokens_lost,
        }


def plan_launch(
    launch: Launch, *, flashinfer: str | None = None, notes: list[str] | None = None
) -> EnginePlan:
    """Judge every site of a launch.

    The engine's release decides which FlashInfer it ships unless `flashinfer` names one. Raises
    `InputError` for a launch that cannot be.
    """
    launch = launch.checked()
    engine = engine_named(launch.engine)
    release, _ = find_release(engine, launch.version)
    layouts, layout_notes = resolve_layouts(flashinfer or release.flashinfer)
    judged = [judge_site(site, launch, layouts) for site in sites_of(engine, release)]
    told = [*(notes or []), *layout_notes]
    if not any(each.live for each in judged):
        return _nothing_live(launch, judged, layouts, told)
    mend = remedy(engine, launch, judged, layouts)
    worst = worst_of(judged)
    plan = worst.plan._replace(
        fits=all(each.plan.fits for each in judged if each.live),
        extra_bytes_per_gpu=sum(mend.extra.values()),
        env=mend.env,
        sites=[_site_dict(each, mend) for each in judged],
        notes=[*told, *mend.notes, *_launch_notes(engine, launch, judged)],
    )
    lost = kv_tokens_lost(launch, plan.extra_bytes_per_gpu)
    return EnginePlan(plan, launch, lost, mend.typed)


def _site_dict(each: Judged, mend: Remedy) -> dict[str, object]:
    """A site with the keys of a plan, its name first, whether it is live and why."""
    reads = each.live and each.site.size != "fixed"
    plan = each.plan._asdict()
    plan.update(
        env=mend.env if reads else {},
        extra_bytes_per_gpu=mend.extra.get(each.site.workspace, 0),
        notes=[each.site.note] if each.site.note else [],
    )
    del plan["sites"]
    named = {"workspace": each.site.workspace, "live": each.live, "live_because": each.why}
    return {**named, **plan}


def _launch_notes(engine: Engine, launch: Launch, judged: list[Judged]) -> list[str]:
    notes = []
    if launch.model.heads % launch.attention_tp:
        notes.append(
            f"{launch.model.heads} heads do not divide by {launch.attention_tp} ranks: counted as "
            "the next whole number per rank; the engine may refuse"
        )
    sparse = engine.name == "vllm" and any(
        each.live and each.site.workspace == "sparse_mla" for each in judged
    )
    if sparse and not launch.attention_backends and not launch.kv_cache_dtype.startswith("fp8"):
        notes.append(
            "with a BF16 KV cache vLLM may choose another sparse backend than FLASHINFER_MLA_SPARSE"
            ", which then carves nothing here: judged as if it does not"
        )
    return notes


def _nothing_live(
    launch: Launch, judged: list[Judged], layouts: tuple[Layout, ...], notes: list[str]
) -> EnginePlan:
    """No site is live: nothing can overflow, and there is no size to tell."""
    why = "; ".join(
        f"{each.site.workspace}: {each.why}"
        for each in judged
        if launch.model.kind in each.site.kinds
    )
    none: dict[sizing.Slab, int] = dict.fromkeys(sizing.SLABS, 0)
    plan = Plan(
        fits=True,
        reasons=[],
        kernel_heads=launch.heads_per_rank,
        planned_batch=0,
        max_q_len=0,
        lse=False,
        layout=layouts[0].name,
        slabs=none,
        need_bytes=0,
        workspace_bytes=0,
        margin_bytes=0,
        margin_batch=None,
        margin_ratio=0.0,
        overflow_threshold_batch=None,
        overrun_batches=None,
        recommended_workspace_bytes=0,
        extra_bytes_per_gpu=0,
        env={},
        sites=[_site_dict(each, Remedy({}, {}, [])) for each in judged],
        notes=[*notes, f"this launch uses no trtllm-gen workspace ({why})"],
    )
    return EnginePlan(plan, launch, 0)
