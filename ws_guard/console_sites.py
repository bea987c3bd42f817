"""What `plan` prints for an engine: one line for each site, then what to set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .console import typed_line
from .units import human_bytes

if TYPE_CHECKING:
    from .engine_planning import EnginePlan

_HEAD = (
    f"  {'site':<20}{'verdict':<16}{'workspace':>15}{'need':>17}{'heads':>7}{'batch':>8}"
    f"{'q len':>8}{'threshold':>11}"
)


def engine_plan_text(result: EnginePlan) -> str:
    """The verdict, the launch, every live site, what to set, and what the plan rests on."""
    plan = result.plan
    live = [site for site in plan.sites if site["live"]]
    lines = [_verdict(result), "", f"  {_launch_line(result)}", ""]
    if live:
        lines += [_HEAD, *(_site_line(site) for site in live), ""]
    lines += _remedy_lines(result)
    lines += [f"  note: {note}" for note in plan.notes]
    # Sites of other models would only be noise.
    others = [
        f"  not live: {site['workspace']} ({site['live_because']})"
        for site in plan.sites
        if not site["live"] and not str(site["live_because"]).endswith(" models")
    ]
    return "\n".join([*lines, *others]).rstrip()


def _verdict(result: EnginePlan) -> str:
    plan, launch = result.plan, result.launch
    assumed = ""
    if launch.version_assumed:
        release = f"{launch.engine} {launch.version}"
        assumed = f"as {release}, the newest known: --engine-version was not given"
    if plan.fits:
        told = f" ({assumed})" if assumed else ""
        return f"FITS{told}: no step of this launch can overflow a workspace"
    failing = [s for s in plan.sites if s["live"] and not s["fits"]]
    names = ", ".join(str(site["workspace"]) for site in failing)
    reasons = dict.fromkeys(reason for site in failing for reason in _reasons(site))
    told = f"; {assumed}" if assumed else ""
    return f"DOES NOT FIT ({', '.join(reasons)}{told}): {names}"


def _reasons(site: dict[str, object]) -> list[str]:
    reasons = site["reasons"]
    return list(reasons) if isinstance(reasons, list) else []


def _launch_line(result: EnginePlan) -> str:
    launch = result.launch
    parallel = [("tp", launch.tp), ("dcp", launch.dcp), ("pcp", launch.pcp), ("dp", launch.dp)]
    sizes = " ".join(f"{name} {size}" for name, size in parallel if size > 1 or name == "tp")
    named = f"{launch.model.name}, " if launch.model.name else ""
    return (
        f"{launch.engine} {launch.version}: {named}{launch.model.kind}, "
        f"{launch.model.heads} heads, {sizes}; steps of {launch.max_num_batched_tokens:,} tokens, "
        f"{launch.max_num_seqs:,} requests; layout {result.plan.layout}"
    )


def _site_line(site: dict[str, Any]) -> str:
    verdict = "fits" if site["fits"] else ", ".join(site["reasons"])
    threshold = site["overflow_threshold_batch"]
    limit = "none" if threshold is None else f"{threshold:,}"
    return (
        f"  {site['workspace']:<20}{verdict:<16}{site['workspace_bytes']:>15,}"
        f"{site['need_bytes']:>17,}{site['kernel_heads']:>7}{site['planned_batch']:>8,}"
        f"{site['max_q_len']:>8,}{limit:>11}"
    )


def _remedy_lines(result: EnginePlan) -> list[str]:
    plan = result.plan
    lines = [f"  {typed_line(typed)}" for typed in result.typed]
    if plan.extra_bytes_per_gpu:
        cost = f"  costs: {human_bytes(plan.extra_bytes_per_gpu)} more per GPU"
        if result.kv_tokens_lost:
            cost += f", {result.kv_tokens_lost:,} tokens less in an engine's KV cache"
        lines.append(cost)
    return lines
