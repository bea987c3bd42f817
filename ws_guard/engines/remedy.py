"""What to set so that every live site fits, what it costs, and what only flags can mend."""

from __future__ import annotations

from typing import NamedTuple

from ws_guard.sizing import GRID_LIMIT_BATCH, Layout

from .judge import Judged, judge_site, variable_bytes, workspace_bytes
from .launch import Launch
from .sites import Engine


class Remedy(NamedTuple):
    """What makes a launch fit. `extra` are bytes per GPU by site, `notes` what to say beside.

    `env` is to be set (strings), `unset` a variable that is better taken away, `flags` are to be
    lowered to these numbers.
    """

    env: dict[str, str]
    extra: dict[str, int]
    notes: list[str]
    unset: str = ""
    flags: dict[str, int] = {}  # noqa: RUF012 - never written to

    @property
    def typed(self) -> tuple[str, ...]:
        """All of it as one would type it."""
        variables = (f"{name}={value}" for name, value in self.env.items())
        flags = (f"{flag} {limit}" for flag, limit in self.flags.items())
        taken_away = [f"unset {self.unset}"] if self.unset else []
        return (*variables, *taken_away, *flags)


class _Limit(NamedTuple):
    """A flag that brings a site under its threshold, and why nothing else does."""

    flag: str
    most: int
    note: str


def remedy(
    engine: Engine, launch: Launch, judged: list[Judged], layouts: tuple[Layout, ...]
) -> Remedy:
    """How to make a launch fit. The notes also say what only other flags can change."""
    failing = [each for each in judged if each.live and not each.plan.fits]
    limits = [limit for each in failing if (limit := _limit(engine, launch, each))]
    by_flags = Remedy({}, {}, [limit.note for limit in limits], flags=_lowest(limits))
    if not any(_mendable(each) for each in failing):
        return by_flags
    if launch.workspace_bytes is not None:
        plain = launch._replace(workspace_bytes=None)
        if _variable_suffices(judged, plain, layouts):
            return by_flags._replace(
                unset=engine.env,
                extra=_extra(judged, launch, plain),
                notes=[_own_sizes(engine, launch, failing), *by_flags.notes],
            )
    value = max(
        variable_bytes(each, launch) for each in judged if each.live and each.site.size != "fixed"
    )
    raised = launch._replace(workspace_bytes=value)
    return by_flags._replace(
        env={engine.env: str(value)},
        extra=_extra(judged, launch, raised),
        notes=[engine.env_note, *by_flags.notes],
    )


def _own_sizes(engine: Engine, launch: Launch, failing: list[Judged]) -> str:
    plain = launch._replace(workspace_bytes=None)
    sizes = ", ".join(
        f"{workspace_bytes(each.site, plain):,} for {each.site.workspace}"
        for each in failing
        if each.site.size != "fixed"
    )
    return f"unset {engine.env} ({launch.workspace_bytes:,}): the engine's own size {sizes} fits"


def _mendable(each: Judged) -> bool:
    return each.site.size != "fixed" and each.plan.reasons != ["grid_limit"]


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


def _limit(engine: Engine, launch: Launch, each: Judged) -> _Limit | None:
    """The flag that mends a failing site where no variable does."""
    plan, site = each.plan, each.site
    flag = engine.tokens_flag if site.batch == "tokens" else engine.seqs_flag
    if "grid_limit" in plan.reasons:
        most = GRID_LIMIT_BATCH * launch.attention_dp
        why = f"a batch above {GRID_LIMIT_BATCH:,} cannot launch whatever the workspace"
        return _Limit(flag, most, f"{site.workspace}: {why}: lower {flag} to {most}")
    if site.size != "fixed" or "overflow" not in plan.reasons or not plan.overflow_threshold_batch:
        return None
    most = plan.overflow_threshold_batch * launch.attention_dp
    if site.batch == "prefill_requests" and engine.name == "sglang":
        # Counted by each scheduler for itself.
        flag, most = "--prefill-max-requests", plan.overflow_threshold_batch
    why = f"its {plan.workspace_bytes:,} bytes are fixed, no variable helps"
    return _Limit(flag, most, f"{site.workspace}: {why}: {flag} {most} fits")


def _lowest(limits: list[_Limit]) -> dict[str, int]:
    """Of each flag the lowest limit."""
    lowest: dict[str, int] = {}
    for flag, most, _ in limits:
        lowest[flag] = min(most, lowest.get(flag, most))
    return lowest
