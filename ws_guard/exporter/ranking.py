"""Which worker to look at first."""

from __future__ import annotations

import math

from .model import Numbers, Worker, Workspace


def tightest(site: Workspace) -> Numbers | None:
    """The basis with the least margin; None where no margin is known."""
    known = [numbers for _, numbers in site.known if numbers.margin_ratio is not None]
    return min(known, key=_ratio, default=None)


def least_ratio(worker: Worker) -> float | None:
    """The least margin ratio over all workspaces and bases."""
    return min((_ratio(n) for site in worker.workspaces if (n := tightest(site))), default=None)


def worker_urgency(worker: Worker) -> tuple[bool, bool, float]:
    """Sorts the dead first, then those with an overflow or overrun, then by margin."""
    troubled = any(op.overflows or op.overruns for op in worker.ops)
    ratio = least_ratio(worker)
    return worker.alive, not troubled, math.inf if ratio is None else ratio


def site_urgency(site: Workspace) -> float:
    """Sorts by margin."""
    numbers = tightest(site)
    return math.inf if numbers is None else _ratio(numbers)


def _ratio(numbers: Numbers) -> float:
    return math.inf if numbers.margin_ratio is None else numbers.margin_ratio
