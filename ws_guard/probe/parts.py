"""What the ledgers of a process share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .counters import CounterCheck
from .graphs import Graphs
from .guard import Guard
from .hygiene import Hygiene
from .provisions import Provisions
from .recorder import Recorder
from .split import Splitter
from .ticker import Ticker
from .tuning import Tuning

#: A tick, in parts of the interval. A look is asked for at one tick and answered at the next: what
#: happens right after one is told two ticks later, which is within the interval.
_TICK = 0.4


class Parts(NamedTuple):
    """The parts of the probe, each for one thing that may happen to a call or around it."""

    tuning: Tuning
    graphs: Graphs
    guard: Guard
    hygiene: Hygiene
    provisions: Provisions
    ticker: Ticker

    @classmethod
    def of(
        cls,
        recorder: Recorder,
        on_overflow: str = "observe",
        splitters: dict[str, Splitter] | None = None,
        *,
        interval: float = 1.0,
        report: Callable[[str], None] | None = None,
    ) -> Parts:
        """All of them, around one recorder.

        `interval` in seconds: an overrun into a guard zone is told within it.
        """
        graphs = Graphs(recorder)
        ticker = Ticker(interval * _TICK, recorder.stumbled)
        return cls(
            tuning=Tuning(recorder.stumbled),
            graphs=graphs,
            guard=Guard(recorder, on_overflow, splitters),
            hygiene=Hygiene(recorder, graphs, CounterCheck(ticker)),
            provisions=Provisions(recorder, graphs, ticker, report or recorder.warn),
            ticker=ticker,
        )
