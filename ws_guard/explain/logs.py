"""A log, explained."""

from __future__ import annotations

from collections.abc import Mapping

from . import memory
from .finding import Finding
from .reader import LogReader, merged, rank_names
from .source import open_log
from .verdict import finding_of


def explain_log(path: str, environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Every distinct fault of a log, in the order of its kinds; `-` is standard input.

    `environ` tells where the hub's cache is. Raises `InputError` for what cannot be read.
    """
    with open_log(path) as source:
        found = LogReader().read(source)
    known = found.hints.evidence(environ)
    return [
        finding_of(fault, rank_names(origins), known._replace(sites=sites))
        for fault, origins, sites in merged(found)
        if fault.kind != "out_of_memory" or memory.concerns_workspace(fault, known)
    ]
