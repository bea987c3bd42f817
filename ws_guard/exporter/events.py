"""One JSON line per overflow, overrun and death: the pod that met them may be gone in seconds."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any, NamedTuple, TextIO

from ws_guard.board import LastCall, Outcome
from ws_guard.sizing import NATIVE_SLABS

from .derive import Observed
from .lines import LineWriter
from .model import Numbers, OpCounts
from .sizes import carve_shape, number_shape, size_shape
from .snapshot import Snapshot

KEPT_EVENTS = 50

#: (kind, action) of a call in the ring; a raised or split one is of the kind that its shape tells.
_EVENT_OF_OUTCOME: dict[int, tuple[str, str]] = {
    Outcome.OVERFLOW: ("overflow", "observed"),
    Outcome.OVERRUN: ("overrun", "observed"),
    Outcome.RAISED: ("", "raised"),
    Outcome.SPLIT: ("", "split"),
}

Event = dict[str, Any]


class _Key(NamedTuple):
    kind: str
    op: str
    action: str


class _Tally:
    """What was told of one kind of event of one slot."""

    def __init__(self) -> None:
        self.told = 0
        self.newest_ns = 0
        self.missing = 0

    def due(self, total: int, calls: list[LastCall], final: bool) -> tuple[list[LastCall], int]:
        """(calls to tell, events to tell by their number alone) when `total` have happened.

        A worker writes counter and ring one after the other: an event that is not in the ring yet
        is waited for once.
        """
        self.told = min(self.told, total)  # a worker takes back what it counted in error
        fresh = [call for call in calls if call.at_ns > self.newest_ns][: total - self.told]
        self.told += len(fresh)
        if fresh:
            self.newest_ns = fresh[-1].at_ns
        missing, waited = total - self.told, self.missing
        given_up = missing if final else min(missing, waited)
        self.told += given_up
        self.missing = missing - given_up
        if given_up and calls:
            self.newest_ns = max(self.newest_ns, calls[-1].at_ns)
        return fresh, given_up


class EventLog:
    """Tells every event once, those that were in a slot before it looked included."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._lines = LineWriter(stream)
        self._tallies: dict[str, dict[_Key, _Tally]] = {}
        self._deaths: set[str] = set()
        #: What was noted last: a slot that was not read again has no news.
        self._noted: dict[str, Observed] = {}
        self._recent: deque[Event] = deque(maxlen=KEPT_EVENTS)

    @property
    def recent(self) -> list[Event]:
        """The last events, newest first."""
        return list(reversed(self._recent))

    def start(self) -> None:
        """From now on lines are written by a thread of their own: `note` waits for no reader."""
        self._lines.start()

    def stop(self) -> None:
        """Write what waits, and end that thread."""
        self._lines.stop()

    def note(self, snapshot: Snapshot) -> None:
        """Write a line for all that is new in a snapshot."""
        for one in snapshot.slots:
            if self._noted.get(one.slot) is one:
                continue
            for event in self._new_events(one):
                self._recent.append(event)
                self._lines.put(json.dumps(event))
        if snapshot.state == "read" and not snapshot.fault:
            self._noted = {one.slot: one for one in snapshot.slots}
            here = self._noted.keys()
            self._tallies = {slot: t for slot, t in self._tallies.items() if slot in here}
            self._deaths &= here

    def _new_events(self, one: Observed) -> Iterator[Event]:
        tallies = self._tallies.setdefault(one.slot, {})
        calls: dict[_Key, list[LastCall]] = {}
        for call in one.calls.events():
            if (key := _key_of_call(one, call)) is not None:
                calls.setdefault(key, []).append(call)
        totals = dict(_totals(one.worker.ops))
        for key in {**tallies, **totals}:
            tally, final = tallies.setdefault(key, _Tally()), not one.worker.alive
            fresh, untold = tally.due(totals.get(key, 0), calls.get(key, []), final)
            for call in fresh:
                yield _call_event(one, key, call)
            if untold:
                yield _counted_event(one, key, untold)
        if not one.worker.alive and one.slot not in self._deaths:
            self._deaths.add(one.slot)
            yield _head("death", one, None)


def events_of(one: Observed) -> list[Event]:
    """Every event that a slot tells, for whoever looks at it once."""
    log = EventLog()
    # Whoever looks once cannot wait for what is not in the ring yet.
    return [event for _ in range(2) for event in log._new_events(one)]


def _totals(ops: tuple[OpCounts, ...]) -> Iterator[tuple[_Key, int]]:
    for counts in ops:
        for kind, actions in (("overflow", counts.overflows), ("overrun", counts.overruns)):
            for action, total in actions.items():
                yield _Key(kind, counts.op, action), total


def _key_of_call(one: Observed, call: LastCall) -> _Key | None:
    kind, action = _EVENT_OF_OUTCOME.get(call.outcome, ("", ""))
    if not action:
        return None
    if not kind:
        sized = size_shape(call.shape, one.document)
        kind = "overrun" if sized is not None and sized.overrun_possible else "overflow"
    return _Key(kind, one.document.op_name(call.shape.op), action)


def _head(event: str, one: Observed, seconds: float | None) -> Event:
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, timezone.utc)
    return {
        "event": event,
        "time": moment.isoformat(timespec="milliseconds"),
        "engine": one.worker.engine,
        "rank": one.worker.rank,
        "pid": one.worker.pid,
    }


def _counted_event(one: Observed, key: _Key, count: int) -> Event:
    worker = one.worker
    stamps = {
        "overflow": worker.last_overflow_timestamp_seconds,
        "overrun": worker.last_overrun_timestamp_seconds,
    }
    head = _head(key.kind, one, stamps[key.kind])
    event = head | {"op": key.op, "action": key.action, "count": count}
    if key.kind == "overrun" and worker.destroyed_zones:
        event["destroyed_zone"] = asdict(worker.destroyed_zones[-1])
    return event


def _call_event(one: Observed, key: _Key, call: LastCall) -> Event:
    shape = call.shape
    workspace = one.document.workspace_name(shape.workspace)
    numbers = number_shape(shape, one.document)
    recommended, env = _what_to_set(numbers, one.document.plan_of(workspace))
    return _head(key.kind, one, call.at_ns / 1e9) | {
        "op": key.op,
        "action": key.action,
        "workspace": workspace,
        **_folded(one, call),
        "batch": shape.batch,
        "heads": shape.heads,
        "q_len": shape.q_len,
        "need_bytes": numbers.need_bytes,
        "workspace_bytes": shape.workspace_bytes,
        **_slab(one, call, numbers),
        "overflow_threshold_batch": numbers.overflow_threshold_batch,
        "recommended_workspace_bytes": recommended,
        "env": env,
    }


def _folded(one: Observed, call: LastCall) -> Event:
    """A mark for a call that shared its row: it was of the shape told, or of a lesser one."""
    return {"folded": True} if one.is_folded(call) else {}


def _slab(one: Observed, call: LastCall, numbers: Numbers) -> Event:
    """The slab that did not fit: what the launcher refused, else the scratch it did not check."""
    answer = carve_shape(call.shape, one.document)
    if answer is None:
        slab, size, available = None, None, None
    elif answer.refused is not None:
        slab, size = answer.refused.slab, answer.refused.size
        available = answer.refused.available
    else:
        slab, size = NATIVE_SLABS["scratch"], numbers.slabs["scratch"]
        available = answer.scratch_available
    return {"slab": slab, "slab_bytes": size, "available_bytes": available}


def _what_to_set(numbers: Numbers, planned: Numbers | None) -> tuple[int | None, dict[str, str]]:
    """The plan's advice where it covers the call: it knows the worst step and the engine."""
    if planned is not None and planned.recommended_workspace_bytes is not None:
        advised = planned.recommended_workspace_bytes
        if numbers.need_bytes is None or advised >= numbers.need_bytes:
            return advised, planned.env
    return numbers.recommended_workspace_bytes, {}
