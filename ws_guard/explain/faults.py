"""The faults of a log: of each who met it, and those that are the same one together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from .lines import is_supervisor
from .wordings import Fault

#: Distinct faults that are told: a crash has a few, anything else is no log.
MOST_FAULTS = 100

#: (source, rank) of a line.
Origin = tuple[str, str]


@dataclass(slots=True)
class Met:
    """A fault, the origins of the lines that tell of it, and the engine sites above it.

    `engines` are those of its tracebacks, `steps` the tokens of the failed steps that belong to it.
    """

    fault: Fault
    origins: dict[Origin, None] = field(default_factory=dict)
    sites: dict[str, None] = field(default_factory=dict)
    engines: dict[str, None] = field(default_factory=dict)
    steps: dict[int, None] = field(default_factory=dict)

    def take(self, other: Met) -> None:
        """Count another telling of the same fault as this one."""
        self.fault = _together(self.fault, other.fault)
        self.origins |= other.origins
        self.sites |= other.sites
        self.engines |= other.engines
        self.steps |= other.steps


class Faults:
    """Gathers faults as they are told, the first `MOST_FAULTS` distinct ones."""

    def __init__(self) -> None:
        self._met: dict[Fault, Met] = {}

    def has_room_for(self, fault: Fault) -> bool:
        """Whether `add` would take it in."""
        return fault in self._met or len(self._met) < MOST_FAULTS

    def add(
        self,
        fault: Fault,
        origin: Origin,
        sites: Iterable[str],
        engine: str | None,
        steps: Iterable[int],
    ) -> None:
        """Take in a fault, unless there are too many."""
        if self.has_room_for(fault):
            met = self._met.setdefault(fault, Met(fault))
            met.origins[origin] = None
            met.sites.update(dict.fromkeys(sites))
            met.engines.update({engine: None} if engine else {})
            met.steps.update(dict.fromkeys(steps))

    def merged(self) -> list[Met]:
        """Those that are the same one, told more or less fully, together."""
        merged: list[Met] = []
        fullest = sorted(
            self._met.values(),
            key=lambda met: (met.fault.available is None, met.fault.line is None),
        )
        for met in fullest:
            known = next((each for each in merged if _is_same(each.fault, met.fault)), None)
            if known is None:
                merged.append(Met(met.fault))
                merged[-1].take(met)
            else:
                known.take(met)
        return merged


def _is_same(one: Fault, other: Fault) -> bool:
    if (one.kind, one.slab, one.size) != (other.kind, other.slab, other.size):
        return False
    if one.kind == "out_of_memory":
        return True  # every rank has a little more or less free
    if other.kind == "locked":
        return one.caller == other.caller and one.available == other.available
    return other.available is None or one.available == other.available


def _together(one: Fault, other: Fault) -> Fault:
    lines = [each.line for each in (one, other) if each.line is not None]
    free = [each.available for each in (one, other) if each.available is not None]
    return one._replace(
        line=lines[0] if lines else None,
        available=min(free) if free else None,
        total=one.total or other.total,
        caller=one.caller or other.caller,
    )


def rank_names(origins: Iterable[Origin]) -> tuple[str, ...]:
    """Names of those that met a fault: workers, else who told of them; pods only where several."""
    every = list(origins)
    workers = [each for each in every if each[1] and not is_supervisor(each[1])]
    chosen = workers or [each for each in every if any(each)]
    several = len({source for source, _ in chosen}) > 1
    names = {
        "/".join(filter(None, (source, rank))) if several or not rank else rank
        for source, rank in chosen
    }
    return tuple(sorted(names, key=_natural))


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    parts = re.findall(r"\d{1,18}|\D+|\d", name)
    return tuple((not part.isdigit(), int(part) if part.isdecimal() else 0, part) for part in parts)
