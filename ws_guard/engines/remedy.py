"""What to set so that every live site fits, what it costs, and what no variable can mend."""

from __future__ import annotations

from typing import NamedTuple

from ws_guard.sizing import GRID_LIMIT_BATCH, Layout

from .judge import Judged, judge_site, workspace_bytes
from .launch import Launch
from .sites import Engine


class Remedy(NamedTuple):
    """`env` to set (strings), `extra` bytes per GPU by site, and what to say beside.

    An empty `env` with extra bytes: the engine's variable is better removed, as a note says.
    """

    env: dict[str, str]
    extra: dict[str, int]
    notes: list[str]


def remedy(
    engine: Engine, launch: Launch, judged: list[Judged], layouts: tuple[Layout, ...]
) -> Remedy:
    """How to make a launch fit. The notes also say what only other flags can change."""
    failing = [each for each in judged if each.live and not each.plan.fits]
    notes = [note for each in failing for note in _flag_notes(engine, launch, each)]
    if not any(_mendable(each) for each in failing):
        return Remedy({}, {}, notes)
    if launch.workspace_bytes is not None:
        plain = launch._replace(workspace_bytes=None)
        if _variable_suffices(judged, plain, layouts):
            sizes = ", ".join(
                f"{workspace_bytes(each.site, plain):,} for {each.site.workspace}"
                for each in failing
                if each.site.size != "fixed"
            )
            note = f"unset {engine.env} ({launch.workspace_bytes:,}): the engine's own size {sizes}"
            return Remedy({}, _extra(judged, launch, plain), [f"{note} fits", *notes])
    value = max(
        -(-each.plan.recommended_workspace_bytes // _times(each, launch))
        for each in judged
        if each.live and each.site.size != "fixed"
    )
    raised = launch._replace(workspace_bytes=value)
    extra = _extra(judged, launch, raised)
    return Remedy({engine.env: str(value)}, extra, [engine.env_note, *notes])


def _mendable(each: Judged) -> bool:
    return each.site.size != "fixed" and each.plan.reasons != ["grid_limit"]


def _times(each: Judged, launch: Launch) -> int:
    return launch.dcp if each.site.size == "env_x_dcp" else 1


def _variable_suffices(judged: list[Judged], launch: Launch, layouts: tuple[Layout, ...]) -> bool:
    readers = [each.site for each in judged if each.live and each.site.size != "fixed"]
    return all(
        set(judge_site(site, launch, layouts).plan.reasons) <= {"grid_limit"} for site in readers
    )


def _extra(judged: list[Judged], now: Launch, then: Launch) -> dict[str, int]:
    """More bytes per GPU, once for each buffer: sites that share one count with the first."""
    extra: dict[str, int] = {}
    holders: set[str] = set()
    for each in judged:
        if each.live and each.site.holder not in holders:
            holders.add(each.site.holder)
            more = workspace_bytes(each.site, then) - workspace_bytes(each.site, now)
            extra[each.site.workspace] = max(0, more)
    return extra


def _flag_notes(engine: Engine, launch: Launch, each: Judged) -> list[str]:
    """The flags that bring a failing site under its threshold, where no variable does."""
    plan, site = each.plan, each.site
    tokens, seqs = engine.tokens_flag, engine.seqs_flag
    if "grid_limit" in plan.reasons:
        flag = tokens if site.batch == "tokens" else seqs
        limit = GRID_LIMIT_BATCH * launch.attention_dp
        why = f"a batch above {GRID_LIMIT_BATCH:,} cannot launch whatever the workspace"
        return [f"{site.workspace}: {why}: lower {flag} to {limit}"]
    if site.size != "fixed" or not plan.overflow_threshold_batch:
        return []
    limit = plan.overflow_threshold_batch
    if site.batch == "prefill_requests" and engine.name == "sglang":
        flag = "--prefill-max-requests"
    else:
        flag, limit = (tokens if site.batch == "tokens" else seqs), limit * launch.attention_dp
    size = f"{plan.workspace_bytes:,}"
    return [f"{site.workspace}: its {size} bytes are fixed, no variable helps: {flag} {limit} fits"]
