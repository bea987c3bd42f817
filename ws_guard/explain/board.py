"""Dead workers' slots, explained: the call that overflowed, and the same verdict as from a log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from ws_guard.board import BoardError, open_board
from ws_guard.exporter.checks import CHECKS
from ws_guard.exporter.derive import Observed
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.postmortem import Trouble, find_troubles
from ws_guard.settings import Settings
from ws_guard.sizing import ENTRY_OF_OP, EXTERNAL_COUNTER, InputError

from .evidence import Evidence
from .finding import Finding, Solution
from .verdict import finding_of
from .wordings import Fault, Kind

_LAST_CALLS = 5


class Explained(NamedTuple):
    """What a board tells: findings, the ranks that died, and the last calls of each of them.

    `passed_over` says which files could not be read and why, slots of another format above all:
    of their workers nothing is known. "" where all could be.
    """

    findings: list[Finding]
    dead: list[str]
    last_calls: dict[str, list[dict[str, Any]]]
    passed_over: str = ""


def explain_board(settings: Settings) -> Explained:
    """Read a board once; raises `InputError` for one that cannot be read or is not there."""
    try:
        watch = BoardWatch(open_board(settings.board, settings.board_group, settings.trusted_uids))
        snapshot = watch.read()
    except BoardError as error:
        raise InputError(str(error)) from None
    if snapshot.fault or snapshot.state == "absent":
        reason = snapshot.fault or "there is no such directory"
        raise InputError(f"board {settings.board}: {reason}; pass --board DIRECTORY")
    dead = [one for one in snapshot.slots if not one.worker.alive]
    return Explained(
        findings=explain_troubles(find_troubles(snapshot.slots)),
        dead=[_name(one) for one in dead],
        last_calls={_name(one): _last_calls(one) for one in dead},
        passed_over=CHECKS["board_readable"](snapshot, settings)[1],
    )


def explain_troubles(troubles: Iterable[Trouble]) -> list[Finding]:
    """A finding for each call that did not fit."""
    return [_finding(trouble) for trouble in troubles]


def _name(one: Observed) -> str:
    return f"{one.worker.engine}/{one.worker.rank}"


def _last_calls(one: Observed) -> list[dict[str, Any]]:
    """The newest calls, the newest first."""
    return [asdict(one.seen_call(call)) for call in reversed(one.calls[-_LAST_CALLS:])]


def _finding(trouble: Trouble) -> Finding:
    if trouble.kind == "overrun":
        return _overrun(trouble)
    evidence = Evidence(
        layout=trouble.layout,
        entry=ENTRY_OF_OP.get(trouble.op),
        kernel_heads=trouble.heads,
        batch=trouble.batch,
        q_len=trouble.q_len,
        workspace_bytes=trouble.workspace_bytes,
        recommended_bytes=trouble.recommended_bytes,
        env=trouble.env,
    )
    kind: Kind = "counter" if trouble.slab == EXTERNAL_COUNTER else "overflow"
    fault = Fault(kind, trouble.slab or "", trouble.slab_bytes, trouble.available_bytes)
    if trouble.batch is None:
        note = f"{trouble.times:,} calls of {trouble.op} that left the slot's ring: see the log"
        blank = finding_of(fault, trouble.ranks, Evidence())
        return blank._replace(notes=(note,))
    found = finding_of(fault, trouble.ranks, evidence)
    if kind == "counter":
        found = found._replace(solutions=_call(trouble), confidence="exact")
    return found._replace(overflow_threshold_batch=trouble.threshold_batch)


def _overrun(trouble: Trouble) -> Finding:
    """Scratch that did not fit: no error was raised, and no log tells of it."""
    sizes = () if trouble.workspace_bytes is None else (trouble.workspace_bytes,)
    return Finding(
        kind="overrun",
        ranks=trouble.ranks,
        slab=trouble.slab or "?",
        size=trouble.slab_bytes,
        available=trouble.available_bytes,
        layouts=(trouble.layout,) if trouble.layout else (),
        workspace_bytes=sizes,
        solutions=_call(trouble),
        overflow_threshold_batch=trouble.threshold_batch,
        need_bytes=trouble.need_bytes,
        recommended_workspace_bytes=trouble.recommended_bytes,
        env=dict(trouble.env),
        set=tuple(f"{name}={value}" for name, value in trouble.env),
        confidence="exact" if trouble.layout and trouble.batch is not None else "unsolved",
        notes=("memory behind the workspace was overwritten: results since then are suspect",),
    )


def _call(trouble: Trouble) -> tuple[Solution, ...]:
    if trouble.heads is None or trouble.batch is None:
        return ()
    return (Solution(trouble.heads, trouble.batch, trouble.q_len),)
