"""From what a slot holds to a worker: its workspaces on every basis, its ops and their counts."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ws_guard.board import (
    ACTIONS,
    OVERFLOW,
    OVERRUN,
    LastCall,
    LastCalls,
    Outcome,
    Row,
    Shape,
    SlotView,
)

from .document import Document, parse_document
from .model import BATCH_BUCKETS, Numbers, OpCounts, SeenCall, Worker, Workspace
from .sizes import Sized, number_shape, size_shape

MODES = ("eager", "captured", "replayed", "tuning")
_NANO = 1_000_000_000
_OUTCOMES = {outcome.value: outcome.name.lower() for outcome in Outcome}


class Observed(NamedTuple):
    """A slot that told who it is: the worker in it, and what else its readers look into."""

    slot: str
    attached_ns: int
    worker: Worker
    document: Document
    calls: LastCalls
    #: Shapes of the rows that several shapes share: the worst stands for all of them.
    folded: frozenset[Shape] = frozenset()

    def is_folded(self, call: LastCall) -> bool:
        """Whether a call was of its shape or of a lesser one, nobody knows which."""
        return call.shape in self.folded

    def seen_call(self, call: LastCall) -> SeenCall:
        """One of the last calls, as it is told."""
        shape = call.shape
        sized = size_shape(shape, self.document)
        return SeenCall(
            timestamp_seconds=call.at_ns / _NANO,
            op=self.document.op_name(shape.op),
            workspace=self.document.workspace_name(shape.workspace),
            outcome=_OUTCOMES.get(call.outcome, "unknown"),
            batch=shape.batch,
            heads=shape.heads,
            q_len=shape.q_len,
            lse=shape.lse,
            workspace_bytes=shape.workspace_bytes,
            need_bytes=sized.need_bytes if sized else None,
            margin_bytes=shape.workspace_bytes - sized.need_bytes if sized else None,
            folded=self.is_folded(call),
        )


@dataclass(slots=True)
class _OpTally:
    calls: list[int] = field(default_factory=lambda: [0] * len(MODES))
    batch_counts: list[int] = field(default_factory=lambda: [0] * (len(BATCH_BUCKETS) + 1))
    batch_sum: int = 0

    def add(self, row: Row) -> None:
        batch, ran = row.shape.batch, row.eager + row.replayed
        for mode, count in enumerate((row.eager, row.captured, row.replayed, row.tuning)):
            self.calls[mode] += count
        # All batches of a folded row lie in one bucket: a power of four ends each of them.
        self.batch_counts[bisect_left(BATCH_BUCKETS, batch)] += ran
        self.batch_sum += row.sum_eager + row.sum_replayed if row.folded else batch * ran


@dataclass(slots=True)
class _SiteTally:
    worst: Shape | None = None
    worst_bytes: int = -1
    overrun_possible: bool = False

    def add(self, shape: Shape, sized: Sized) -> None:
        self.overrun_possible |= sized.overrun_possible
        if sized.need_bytes > self.worst_bytes:
            self.worst, self.worst_bytes = shape, sized.need_bytes


class Deriver:
    """Derives one slot again and again; a shape is sized once."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}
        self._document = parse_document({})
        self._sized: dict[Shape, Sized | None] = {}
        # The ring forgets a workspace that is seldom used; its last call stays the last one.
        self._last: dict[str, tuple[LastCall, bool]] = {}

    def observe(self, view: SlotView) -> Observed:
        """The worker behind a slot now."""
        if view.document is not self._told:
            self._told, self._document = view.document, parse_document(view.document)
            self._sized.clear()
            self._last.clear()
        document = self._document
        ops, sites = self._tally(view.rows)
        folded = frozenset(row.shape for row in view.rows if row.folded)
        for call in view.calls.newest():
            name = document.workspace_name(call.shape.workspace)
            self._last[name] = call, call.shape in folded
        workspaces = [self._workspace(name, sites.get(name)) for name in self._names(sites)]
        worst = [site.worst.first_seen_ns for site in sites.values() if site.worst]
        last = [call.at_ns for call, _ in self._last.values()]
        worker = Worker(
            engine=document.engine,
            rank=document.rank,
            pid=view.pid,
            alive=view.alive,
            expected_workers=document.expected_workers,
            contract=document.contract,
            contract_reason=document.contract_reason,
            layout=document.layout.name if document.layout else None,
            info=document.info,
            problems=document.problems,
            warnings=document.warnings,
            destroyed_zones=document.destroyed_zones,
            plan_known=document.plans is not None,
            workspaces=tuple(workspaces),
            ops=_op_counts(document, ops, view.events),
            probe_errors=view.probe_errors,
            start_timestamp_seconds=view.attached_ns / _NANO,
            last_call_timestamp_seconds=_seconds(max(last, default=0)),
            peak_timestamp_seconds=_seconds(max(worst, default=0)),
            last_overflow_timestamp_seconds=_seconds(view.last_overflow_ns),
            last_overrun_timestamp_seconds=_seconds(view.last_overrun_ns),
        )
        return Observed(view.name, view.attached_ns, worker, document, view.calls, folded)

    def _tally(self, rows: list[Row]) -> tuple[dict[str, _OpTally], dict[str, _SiteTally]]:
        ops: defaultdict[str, _OpTally] = defaultdict(_OpTally)
        sites: defaultdict[str, _SiteTally] = defaultdict(_SiteTally)
        known, self._sized = self._sized, {}
        for row in rows:
            shape = row.shape
            ops[self._document.op_name(shape.op)].add(row)
            if not (row.eager or row.captured or row.replayed):
                continue
            sized = known[shape] if shape in known else size_shape(shape, self._document)
            self._sized[shape] = sized
            site = sites[self._document.workspace_name(shape.workspace)]
            if sized is not None:
                site.add(shape, sized)
        return ops, sites

    def _names(self, sites: dict[str, _SiteTally]) -> list[str]:
        """Workspaces that were called or planned, those of the worker's own list first."""
        met = {*sites, *self._last, *(self._document.plans or {})}
        named = [name for name in dict.fromkeys(self._document.workspaces) if name in met]
        return named + sorted(met - set(named))

    def _workspace(self, name: str, site: _SiteTally | None) -> Workspace:
        planned = self._document.plan_of(name)
        peak = last = None
        if site is not None and site.worst is not None:
            peak = number_shape(site.worst, self._document)
        call, folded = self._last.get(name, (None, False))
        if call is not None and not folded:  # a folded one is known by its worst case alone
            last = number_shape(call.shape, self._document)
        told: list[Numbers] = [basis for basis in (last, peak, planned) if basis is not None]
        sizes = [basis.workspace_bytes for basis in told if basis.workspace_bytes is not None]
        heads = [basis.heads for basis in told if basis.heads is not None]
        return Workspace(
            workspace=name,
            workspace_bytes=sizes[0] if sizes else None,
            layout=self._document.layout.name if self._document.layout else None,
            heads=heads[0] if heads else None,
            planned=planned,
            peak=peak,
            last=last,
            overrun_possible=site is not None and site.overrun_possible,
        )


def _op_counts(
    document: Document,
    tallies: dict[str, _OpTally],
    events: dict[tuple[int, int, str], int],
) -> tuple[OpCounts, ...]:
    overflows = _by_op(document, events, OVERFLOW)
    overruns = _by_op(document, events, OVERRUN)
    names = dict.fromkeys([*tallies, *overflows, *overruns])
    return tuple(
        OpCounts(
            op=name,
            calls={mode: count for mode, count in zip(MODES, tally.calls, strict=True) if count},
            overflows=overflows.get(name, {}),
            overruns=overruns.get(name, {}),
            batch_counts=tuple(tally.batch_counts),
            batch_sum=tally.batch_sum,
        )
        for name in names
        for tally in (tallies.get(name) or _OpTally(),)
    )


def _by_op(
    document: Document, events: dict[tuple[int, int, str], int], kind: int
) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (op, event_kind, action), count in events.items():
        if event_kind == kind and action in ACTIONS:
            actions = found.setdefault(document.op_name(op), {})
            actions[action] = actions.get(action, 0) + count
    return found


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / _NANO if nanoseconds else None
