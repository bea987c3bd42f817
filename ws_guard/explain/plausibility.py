"""Which of several calls it was: those that may well be before those that hardly are."""

from __future__ import annotations

from typing import NamedTuple

from ws_guard.engines.releases import ENGINES
from ws_guard.sizing import GRID_LIMIT_BATCH

from .evidence import Evidence
from .limits import likely_heads
from .readings import Reading, is_own_size
from .shapes import Shape
from .wordings import Fault

#: Query heads of one rank, or of a gathered group, the most frequent first.
_COMMON_HEADS = (64, 128, 32, 16, 96, 8, 48, 40, 56, 80, 24, 12, 28, 20, 4, 2, 1)
#: Entries, the most frequent first.
_ENTRIES = ("decode", "ragged", "context", "dsv4")


class Candidate(NamedTuple):
    """A call that asks for the size: where it came from, and its shape."""

    reading: Reading
    shape: Shape


def rank_of_heads(heads: int) -> int:
    """The place of a head count among all, the most frequent first."""
    if heads in _COMMON_HEADS:
        return _COMMON_HEADS.index(heads)
    return len(_COMMON_HEADS) + heads


def by_plausibility(
    candidates: list[Candidate], fault: Fault, evidence: Evidence
) -> list[Candidate]:
    """Candidates, the most plausible first."""
    likely = likely_heads(evidence)
    known = _known_sizes(evidence)

    def implausibility(candidate: Candidate) -> tuple[object, ...]:
        reading, shape = candidate
        size = None if fault.available is None else reading.workspace_bytes(fault.available)
        heads = rank_of_heads(shape.heads)
        return (
            reading.rule == "stats_per_token",
            _would_be_larger(reading, size, evidence),
            not is_own_size(reading, fault.available, evidence),
            shape.batch > GRID_LIMIT_BATCH,
            bool(likely) and shape.heads not in likely,
            heads >= len(_COMMON_HEADS),
            shape.low > 1,
            size not in known,
            heads,
            shape.low,
            _ENTRIES.index(reading.entry),
            reading.layout.name != "C",
        )

    return sorted(candidates, key=implausibility)


def credible(candidates: list[Candidate], evidence: Evidence) -> list[Candidate]:
    """Those with heads that the model's lead to, or that models have; all where none is."""
    likely = likely_heads(evidence) or set(_COMMON_HEADS)
    return [each for each in candidates if each.shape.heads in likely] or candidates


def _would_be_larger(reading: Reading, size: int | None, evidence: Evidence) -> bool:
    """Whether the engine sizes the site for its steps, and the workspace was of the size without.

    Only a variable that happens to say the default could have made it that.
    """
    site = reading.site
    computed = site is not None and site.size == "computed" and size == site.size_bytes
    return computed and size != evidence.env_bytes


def _known_sizes(evidence: Evidence) -> set[int | None]:
    """Sizes that engines give their workspaces, and what the log says was set."""
    sizes: set[int | None] = {evidence.env_bytes, evidence.workspace_bytes} - {None}
    for engine in ENGINES.values():
        for site in engine.sites:
            sizes |= {site.size_bytes, site.lse_size_bytes or site.size_bytes}
    return sizes
