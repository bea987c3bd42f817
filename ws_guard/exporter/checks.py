"""The seven health checks. Only `fail` makes not-ready."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from ws_guard.board import OTHER_FORMAT
from ws_guard.settings import Settings
from ws_guard.units import count, ranges

from .derive import Observed
from .model import Check, Health, Numbers, OpCounts, State, Worker
from .snapshot import Snapshot

_SHOWN_LINES, _SHOWN_RANKS = 3, 8

_Verdict: TypeAlias = tuple[State, str]
_Complaint: TypeAlias = tuple[Worker, str]
_NO_WORKER: _Verdict = ("unknown", "no worker has attached yet")


def examine(snapshot: Snapshot, settings: Settings) -> Health:
    """Every check, and whether the board is ready."""
    checks = [Check(name, *rule(snapshot, settings)) for name, rule in CHECKS.items()]
    return Health(
        ready=all(check.state != "fail" for check in checks),
        checks=checks,
        workers=[one.worker for one in snapshot.roster.everyone],
    )


class Examiner:
    """The checks of the newest snapshot, made once for each: probes may come by the thousand."""

    def __init__(self, latest: Callable[[], Snapshot], settings: Settings) -> None:
        self._latest = latest
        self._settings = settings
        # One value, put in place whole: threads may ask.
        self._examined: tuple[Snapshot, Health] | None = None

    def health(self) -> Health:
        """Every check of the newest snapshot, and whether the board is ready."""
        snapshot, examined = self._latest(), self._examined
        if examined is None or examined[0] is not snapshot:
            examined = self._examined = snapshot, examine(snapshot, self._settings)
        return examined[1]


def _board_readable(snapshot: Snapshot, _: Settings) -> _Verdict:
    if snapshot.fault:
        return "fail", f"the board cannot be read: {snapshot.fault}"
    if snapshot.state == "unread":
        return "unknown", "the board was not read yet"
    if snapshot.state == "absent":
        return "unknown", "there is no board yet: no worker has attached"
    if snapshot.refused:
        return "fail", _refusal(snapshot.refused)
    if snapshot.unreadable:
        return _passed_over(snapshot.unreadable)
    return "ok", ""


def _passed_over(reasons: tuple[str, ...]) -> _Verdict:
    """Files that are no slots harm nobody; a slot of another format hides a worker from us."""
    others = sorted({reason for reason in reasons if reason.startswith(OTHER_FORMAT)})
    rest = sorted(set(reasons).difference(others))
    files = _so_many(len(reasons), "file")
    told = f"{files} on the board passed over: {_short([*others, *rest])}"
    if not others:
        return "ok", told
    return "warn", f"{told}; give exporter and workers the same ws-guard, and remove what is left"


def _refusal(reasons: tuple[str, ...]) -> str:
    distinct = sorted(set(reasons))
    slots = _so_many(len(reasons), "slot")
    told = f"{slots} cannot be read, of the workers nothing is known: {_short(distinct)}"
    if os.strerror(errno.EACCES) not in distinct:
        return told
    return f"{told}; run the exporter as their user, or share the board by WS_GUARD_BOARD_GROUP"


def _workers_reporting(snapshot: Snapshot, settings: Settings) -> _Verdict:
    live = [one.worker for one in snapshot.roster.exported if one.worker.alive]
    told = [one.worker.expected_workers or 0 for one in snapshot.roster.everyone]
    expected = settings.expected_workers or max(told, default=0)
    if not expected:
        return ("ok", f"{len(live)} alive") if live else ("fail", "no worker reports yet")
    detail = f"{len(live)} of {expected} expected workers report"
    return ("ok" if len(live) >= expected else "fail"), detail


def _workers_alive(snapshot: Snapshot, _: Settings) -> _Verdict:
    everyone = snapshot.roster.everyone
    if not everyone:
        return _NO_WORKER
    dead = [(one.worker, "the worker died") for one in everyone if not one.worker.alive]
    return ("fail", _gather(dead)) if dead else ("ok", f"{len(everyone)} alive")


def _planned_fits(snapshot: Snapshot, settings: Settings) -> _Verdict:
    workers = [one.worker for one in snapshot.roster.everyone]
    complaints = [
        (worker, complaint)
        for worker in workers
        for site in worker.workspaces
        if site.planned and (complaint := _too_tight(site.workspace, site.planned, settings))
    ]
    if complaints:
        return "fail", _gather(complaints)
    silent = sum(not worker.plan_known for worker in workers)
    if silent or not workers:
        return "unknown", f"no plan is known of {_so_many(silent, 'worker')}"
    if doubts := [(worker, doubt) for worker in workers for doubt in _doubts(worker)]:
        return "unknown", _gather(doubts)
    if not any(worker.workspaces for worker in workers):
        return "ok", "the engine uses no trtllm-gen workspace"
    return "ok", "the worst planned step fits"


def _doubts(worker: Worker) -> Iterator[str]:
    """What the plans of a worker leave open."""
    if not any(site.planned for site in worker.workspaces):
        if worker.workspaces or any(op.calls for op in worker.ops):
            yield "native calls were seen, its plan knows no trtllm-gen workspace"
        return
    for site in worker.workspaces:
        if site.planned is None:
            yield f"{site.workspace}: it was called, its plan is not known"
        elif site.planned.margin_bytes is None:
            yield f"{site.workspace}: its plan lacks the need or the size of the workspace"


def _too_tight(workspace: str, planned: Numbers, settings: Settings) -> str:
    """Why a plan does not do and what to set; "" where it does."""
    margin, least = planned.margin_bytes, settings.min_margin_bytes
    if planned.fits and (margin is None or margin >= least):
        return ""
    if margin is not None and margin < 0:
        why = (
            f"a step of {count(planned.batch)} rows needs {count(planned.need_bytes)} bytes, "
            f"the workspace has {count(planned.workspace_bytes)}"
        )
    elif planned.margin_batch is not None and planned.margin_batch < 0:
        why = (
            f"a step of {count(planned.batch)} rows is more than the "
            f"{count(planned.overflow_threshold_batch)} that the launcher accepts"
        )
    elif not planned.fits:
        why = f"the plan does not fit ({', '.join(planned.reasons)})"
    else:
        why = f"the plan leaves {count(margin)} bytes, WS_GUARD_MIN_MARGIN_BYTES asks {least:,}"
    return f"{workspace}: {why}; {what_to_set(planned)}"


def what_to_set(numbers: Numbers) -> str:
    """The advice for a workspace that is too small, in words."""
    if numbers.reasons == ("grid_limit",):
        return "lower the tokens of a step: no batch above 65,535 can launch"
    if numbers.env:
        return "set " + " ".join(f"{name}={value}" for name, value in numbers.env.items())
    if numbers.recommended_workspace_bytes is not None:
        return f"give the workspace {numbers.recommended_workspace_bytes:,} bytes"
    if numbers.overflow_threshold_batch:
        return f"keep steps to {numbers.overflow_threshold_batch:,} rows"
    return "make the workspace larger"


def _no_overflow(snapshot: Snapshot, _: Settings) -> _Verdict:
    everyone = snapshot.roster.everyone
    if not everyone:
        return _NO_WORKER
    observed = _counted(everyone, lambda op: op.overflows, ("observed",), "overflow")
    if observed:
        return "fail", _gather(observed)
    handled = _counted(everyone, lambda op: op.overflows, ("raised", "split"), "overflow")
    return ("warn", _gather(handled)) if handled else ("ok", "")


def _no_overrun(snapshot: Snapshot, _: Settings) -> _Verdict:
    everyone = snapshot.roster.everyone
    if not everyone:
        return _NO_WORKER
    counted = _counted(everyone, lambda op: op.overruns, ("observed", "raised", "split"), "overrun")
    if counted:
        destroyed = [
            (one.worker, f"{zone.workspace}: {count(zone.destroyed_bytes)} bytes behind it lost")
            for one in everyone
            for zone in one.worker.destroyed_zones
        ]
        return "fail", _gather([*counted, *destroyed])
    possible = [
        (one.worker, f"{site.workspace}: scratch may not fit, at the most that its kernel writes")
        for one in everyone
        for site in one.worker.workspaces
        if site.overrun_possible
    ]
    return ("warn", _gather(possible)) if possible else ("ok", "")


def _counted(
    everyone: Iterable[Observed],
    counts: Callable[[OpCounts], dict[str, int]],
    actions: tuple[str, ...],
    noun: str,
) -> list[_Complaint]:
    return [
        (one.worker, f"{op.op}: {noun} {action}, {_so_many(counts(op)[action], 'call')}")
        for one in everyone
        for op in one.worker.ops
        for action in actions
        if counts(op).get(action)
    ]


def _contract_known(snapshot: Snapshot, settings: Settings) -> _Verdict:
    workers = [one.worker for one in snapshot.roster.everyone]
    doubtful = [
        (worker, f"contract {worker.contract}: {worker.contract_reason or 'no reason told'}")
        for worker in workers
        if worker.contract in ("unverified", "mismatch")
    ]
    if doubtful:
        return ("fail" if settings.strict else "warn"), _gather(doubtful)
    if not workers:
        return _NO_WORKER
    if any(worker.contract != "verified" for worker in workers):
        return "unknown", "not every worker has met FlashInfer"
    return "ok", ""


Rule: TypeAlias = Callable[[Snapshot, Settings], _Verdict]

#: The checks by name, in the order in which they are told.
CHECKS: dict[str, Rule] = {
    "board_readable": _board_readable,
    "workers_reporting": _workers_reporting,
    "workers_alive": _workers_alive,
    "planned_fits": _planned_fits,
    "no_overflow": _no_overflow,
    "no_overrun": _no_overrun,
    "contract_known": _contract_known,
}


def _gather(complaints: Iterable[_Complaint]) -> str:
    """One line per complaint, whichever ranks share it."""
    ranks: dict[tuple[str, str], list[str]] = {}
    for worker, complaint in complaints:
        ranks.setdefault((worker.engine, complaint), []).append(worker.rank)
    return _short(
        [
            f"engine {engine} rank {_short(ranges(who), _SHOWN_RANKS, ',')}: {complaint}"
            for (engine, complaint), who in ranks.items()
        ]
    )


def _short(items: list[str], most: int = _SHOWN_LINES, comma: str = ";") -> str:
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return f"{comma} ".join(items[:most] + more)


def _so_many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
