"""What happens to the soak's workers, and when."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from crew import ENDS, Crew

if TYPE_CHECKING:
    import argparse

    from observers import Scraper

#: Ranks that nobody ends before the end: one as all others, one that meets a new shape each step.
VETERANS, HOARDER = (0, 1), 1


class Fate:
    """Ends workers at random moments and starts them again, until the time is over."""

    def __init__(self, crew: Crew, watched_by: Scraper, options: argparse.Namespace) -> None:
        self._crew, self._scraper = crew, watched_by
        self._random = random.Random(options.seed + 1)  # noqa: S311 - repeatable
        self._mortal = range(len(VETERANS), options.workers)
        self._every, self._group_every = options.kill_every, options.group_every
        self._busy: dict[int, threading.Thread] = {}

    def rule(self, seconds: float) -> None:
        """Until so many seconds from now."""
        end = time.monotonic() + seconds
        group_at = time.monotonic() + self._group_every
        while time.monotonic() < end:
            pause = self._random.expovariate(1 / self._every)
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            if time.monotonic() >= group_at:
                group_at += self._group_every
                for rank in self._mortal[len(self._mortal) // 2 :]:
                    self._strike(rank, "SIGKILL")
            else:
                how = self._random.choices([*ENDS], [*ENDS.values()])[0]
                self._strike(self._random.choice(self._mortal), how)
        for thread in self._busy.values():
            thread.join()

    def _strike(self, rank: int, how: str) -> None:
        """End a worker and start the next of its rank, unless that is under way."""
        thread = self._busy.get(rank)
        if thread is None or not thread.is_alive():
            self._busy[rank] = threading.Thread(target=self._replace, args=(rank, how), daemon=True)
            self._busy[rank].start()

    def _replace(self, rank: int, how: str) -> None:
        self._crew.end(self._crew.current[rank], how, self._scraper)
        self._crew.start(rank)
