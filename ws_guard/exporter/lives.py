"""How long a dead worker's lasting series stay, whoever restarts meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from .derive import Observed

#: How long the lasting series of a dead worker stay, in seconds.
KEEP_DEAD_SECONDS = 900.0

#: A slot by its name, and when its worker attached.
_Life: TypeAlias = tuple[str, int]


class Lives:
    """Remembers when each worker was last known to live; a read that misses a slot forgets none.

    Moments are those of the watch's own clock, which nobody sets; what a slot tells is turned into
    them by the wall clock once, when its worker is first found dead.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._alive_at: dict[_Life, float] = {}
        self._dead_since: dict[_Life, float] = {}

    def forgotten(
        self, slots: Iterable[Observed], changed: Mapping[str, float], now: float
    ) -> frozenset[str]:
        """Names of the slots that are dead for too long. `changed`: when each file last was."""
        names = set()
        present = set()
        for one in slots:
            life = (one.slot, one.attached_ns)
            present.add(life)
            if one.worker.alive:
                self._alive_at[life] = now
            elif life not in self._dead_since:
                age = self._wall() - max(_last_sign(one), changed.get(one.slot, 0.0))
                since = max(self._alive_at.get(life, now - age), now - age)
                self._dead_since[life] = min(now, since)
            if not one.worker.alive and now - self._dead_since[life] > KEEP_DEAD_SECONDS:
                names.add(one.slot)
        self._prune(present, now)
        return frozenset(names)

    def _prune(self, present: set[_Life], now: float) -> None:
        """Let go of slots that left so long ago that their own signs of life say as much."""
        for moments in (self._alive_at, self._dead_since):
            for life in [life for life in moments if life not in present]:
                if now - moments[life] > KEEP_DEAD_SECONDS:
                    del moments[life]


def _last_sign(one: Observed) -> float:
    """When a slot last heard of its worker, by what is in it."""
    worker = one.worker
    told = (worker.last_overflow_timestamp_seconds, worker.last_overrun_timestamp_seconds)
    calls = [call.at_ns / 1e9 for call in one.calls[-1:]]
    return max(one.attached_ns / 1e9, *calls, *(moment or 0.0 for moment in told))
