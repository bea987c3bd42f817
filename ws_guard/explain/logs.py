"""A log, explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ws_guard.sizing import InputError

from . import memory
from .evidence import Evidence
from .faults import Met, rank_names
from .finding import Finding
from .gathering import Hints
from .reader import LogReader
from .source import open_log
from .verdict import finding_of

#: Solutions of several findings together: a log of a hundred faults must not fill the memory.
_MOST_SOLUTIONS, _LEAST_SOLUTIONS = 5_000, 50


class Explained(NamedTuple):
    """Findings of a log; `cut`: there is none, but a line that begins as one and was cut."""

    findings: list[Finding]
    cut: bool = False


def explain_log(path: str, environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Every distinct fault of a log, in the order of its kinds; `-` is standard input.

    `environ` tells where the hub's cache is. Raises `InputError` for what cannot be read, and for
    an empty log or one cut short that holds no fault: nobody knows whether there was one.
    """
    return read_log(path, environ).findings


def read_log(path: str, environ: Mapping[str, str] | None = None) -> Explained:
    """The same, and whether it may be that a fault was cut away."""
    with open_log(path) as source:
        found = LogReader().read(source)
        problem = source.problem()
    if not found.faults and problem:
        raise InputError(problem)
    known = found.hints.evidence(environ)._replace(log=None if path == "-" else path)
    engines = {known.engine, *(engine for met in found.faults for engine in met.engines)}
    if len(engines - {None}) > 1:
        # Of two deployments in one stream: variable and backends may be of either.
        known = known._replace(env_bytes=None, backends=(), doubts=(*known.doubts, "engine"))
    told = [
        met
        for met in found.faults
        if met.fault.kind != "out_of_memory" or memory.concerns_workspace(met.fault, known)
    ]
    findings = (
        finding_of(met.fault, rank_names(met.origins), _evidence_of(met, known, found.hints))
        for met in told
    )
    if len(told) <= 1:
        return Explained(list(findings), found.cut and not told)
    most = max(_LEAST_SOLUTIONS, _MOST_SOLUTIONS // len(told))
    return Explained([_shortened(each, most) for each in findings])


def _evidence_of(met: Met, known: Evidence, hints: Hints) -> Evidence:
    """What is known beside one of the faults."""
    # Of several steps nobody knows which it was.
    step = next(iter(met.steps)) if len(met.steps) == 1 else None
    return hints.of_engine(known, met.engines)._replace(sites=tuple(met.sites), step=step)


def _shortened(found: Finding, most: int) -> Finding:
    if len(found.solutions) <= most:
        return found
    note = f"{len(found.solutions):,} calls ask for these bytes: the {most:,} likeliest are told"
    return found._replace(solutions=found.solutions[:most], notes=(*found.notes, note))
