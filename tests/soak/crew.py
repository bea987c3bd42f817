"""Starts the soak's workers, ends them in every way, and holds what is told against their books."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from book import Book, Bounds, Header, Order, Series, State
from observers import Exporter, Scraper, Told, differences, lasting, told_of_life

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

HERE = Path(__file__).parent
Account = dict[Series, Bounds]
#: How long anything may take before it counts as wrong. The machine may be busy with other things.
PATIENCE_SECONDS = 60
_LOOK_SECONDS = 0.25
_AT_WORK_SECONDS = 1.0
ON_OVERFLOW = ("observe", "raise", "split")
#: Orders to end, and how often each is given.
ENDS = {"SIGKILL": 5, "SIGTERM": 3, "exit": 2}


@dataclass
class Life:
    """One worker process from its start to its end, and what was told of it.

    `account` is what its book says in the end, `told` what the exporter said then.
    """

    rank: int
    number: int
    book: Book
    on_overflow: str
    handles_sigterm: bool
    pid: int = 0
    #: Before it was forked, in seconds of the epoch.
    born: float = field(default_factory=time.time)
    ended: str = ""
    doubt: int = 0
    account: Account = field(default_factory=dict)
    told: Told = field(default_factory=dict)
    stays: bool = False
    seconds_to_tell: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"rank {self.rank}, life {self.number} (pid {self.pid})"

    @property
    def left_in_order(self) -> bool:
        return self.ended in ("exit", "SIGTERM")

    @property
    def overflows(self) -> int:
        """As the exporter told them."""
        return round(sum(n for (name, *_), n in self.told.items() if name == "overflows_total"))

    @property
    def calling(self) -> bool:
        return self.book.words[Header.STATE] == State.CALLING


def _catch_at_work(life: Life) -> None:
    """Wait until a worker is in the middle of a step: most of the time it waits for the next."""
    deadline = time.monotonic() + _AT_WORK_SECONDS
    while not life.book.words[Header.AT_WORK] and time.monotonic() < deadline:
        pass


class Crew:
    """The workers, behind the process that forks them."""

    def __init__(
        self, folder: Path, board: str, workers: int, rate: float, seed: int, told_by: Exporter
    ) -> None:
        self.lives: list[Life] = []
        self.current: dict[int, Life] = {}
        self.random = random.Random(seed)  # noqa: S311 - repeatable
        self._folder, self._board, self._exporter = folder, board, told_by
        self._calls_per_second = rate / workers
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        self._forked: dict[int, int] = {}
        self._change = threading.Condition()
        self._stderr = (folder / "workers.log").open("wb")
        self._nursery = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        assert self._nursery.stdout is not None
        assert b"ready" in self._nursery.stdout.readline()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._nursery.stdout is not None
        for line in self._nursery.stdout:
            told = json.loads(line)
            with self._change:
                if "forked" in told:
                    self._forked[told["rank"]] = told["forked"]
                    self._ended.pop(told["forked"], None)  # another one's, long ago
                else:
                    self._ended[told["ended"]] = told["code"]
                self._change.notify_all()

    @property
    def books(self) -> list[Book]:
        """The books of all lives."""
        return [life.book for life in self.lives]

    # -- births ---------------------------------------------------------------------------------

    def start(self, rank: int, *, always_fresh: bool = False) -> Life:
        """A worker of this rank, calling."""
        with self._lock:
            number = sum(life.rank == rank for life in self.lives)
            path = self._folder / f"book-{rank}-{number}"
            actions = ON_OVERFLOW[rank % len(ON_OVERFLOW)]
            life = Life(rank, number, Book(path), actions, self.random.random() < 0.5)
            order = {
                "board": self._board,
                "book": str(path),
                "rank": rank,
                "on_overflow": actions,
                "seed": self.random.getrandbits(32),
                "calls_per_second": self._calls_per_second,
                "handles_sigterm": life.handles_sigterm,
                "always_fresh": always_fresh,
            }
            assert self._nursery.stdin is not None
            self._nursery.stdin.write(json.dumps(order).encode() + b"\n")
            self._nursery.stdin.flush()
            with self._change:
                assert self._change.wait_for(lambda: rank in self._forked, PATIENCE_SECONDS)
                life.pid = self._forked.pop(rank)
            self.lives.append(life)
            self.current[rank] = life
        try:
            self._wait(life, "it calls", lambda: life.calling)
        except (TimeoutError, RuntimeError) as error:
            life.problems.append(str(error))
        return life

    # -- ends -----------------------------------------------------------------------------------

    def end(self, life: Life, how: str, scraper: Scraper) -> None:
        """End a worker, and see that the exporter and Prometheus tell what its book says."""
        try:
            self._end(life, how, scraper)
        except Exception as error:  # noqa: BLE001 - a finding, and the soak goes on
            life.problems.append(f"{type(error).__name__}: {error}")

    def _end(self, life: Life, how: str, scraper: Scraper) -> None:
        life.ended = how
        if how == "SIGTERM" and life.handles_sigterm:
            os.kill(life.pid, signal.SIGTERM)
            self._leave(life, scraper)
        elif how == "exit":
            life.book.words[Header.ORDER] = Order.STOP
            self._leave(life, scraper)
        else:
            life.ended = f"{how}, unhandled" if how == "SIGTERM" else how
            if self.random.random() < 0.5:
                _catch_at_work(life)
            os.kill(life.pid, getattr(signal, how))
            self._die(life, -getattr(signal, how), scraper)

    def _die(self, life: Life, code: int, scraper: Scraper) -> None:
        """A death: one call or replay may be in doubt, and nothing else."""
        self._wait_for_end(life, code)
        self._take_account(life)
        died = time.monotonic()
        self._wait(life, "its death is told", lambda: self._page_of(life)[1] == 0.0)
        life.seconds_to_tell = time.monotonic() - died
        told, _ = self._page_of(life)
        self._expect(life, "at its death", lasting(life.account), told)
        life.told, life.stays = told, True
        health = self._exporter.worker(life.rank) or {}
        if (health.get("pid"), health.get("alive")) != (life.pid, False):
            life.problems.append(f"/health tells {health.get('pid')}, {health.get('alive')}")
        self._wait(life, "Prometheus has it", lambda: scraper.last(life.rank) == told)
        self._wait(life, "its death is written", lambda: self._told_of(life)["death"])

    def _leave(self, life: Life, scraper: Scraper) -> None:
        """An exit in good order: to the last call, all is told before the worker goes."""
        self._wait(life, "it stops", lambda: life.book.words[Header.STATE] == State.STOPPED)
        self._take_account(life)
        if life.doubt:
            life.problems.append(f"it stopped with {life.doubt} calls in doubt")
        stopped = time.monotonic()
        self._wait(
            life,
            "its counts are told",
            lambda: not differences(life.account, self._page_of(life)[0]),
        )
        life.seconds_to_tell = time.monotonic() - stopped
        life.told, _ = self._page_of(life)
        self._expect(life, "once it stopped", life.account, life.told)
        self._wait(life, "Prometheus has it", lambda: scraper.last(life.rank) == life.told)
        self._wait(
            life,
            "its overflows are written",
            lambda: self._told_of(life)["overflow"] == life.overflows,
        )
        life.book.words[Header.ORDER] = Order.EXIT
        self._wait_for_end(life, 0)
        self._see_exit(life)

    def _see_exit(self, life: Life) -> None:
        """Its slot leaves with it, unless an overflow may have been the reason."""
        if life.book.events("observed"):
            life.stays = True
            self._wait(life, "its evidence stays", lambda: self._page_of(life)[1] == 0.0)
            self._expect(life, "after its exit", lasting(life.account), self._page_of(life)[0])
        elif not life.book.words[Header.LAST_RAISED_NS]:
            self._wait(life, "its slot leaves", lambda: self._page_of(life) == ({}, None))
        else:  # stays where an error was raised within the last minute: both may be
            self._wait(life, "its life is over", lambda: self._page_of(life)[1] != 1.0)
            life.stays = self._page_of(life)[1] == 0.0
        if life.stays:
            self._wait(life, "its death is written", lambda: self._told_of(life)["death"])

    def _take_account(self, life: Life) -> None:
        life.account, life.doubt = life.book.account(), life.book.doubt()
        if life.book.words[Header.SURPRISES]:
            life.problems.append(f"{life.book.words[Header.SURPRISES]} overflows went otherwise")

    def _expect(self, life: Life, when: str, account: Account, told: Told) -> None:
        wrong = differences(account, told)
        life.problems += [f"{when}: {each}" for each in wrong]

    def _told_of(self, life: Life) -> Counter[str]:
        return told_of_life(self._exporter.events(life.rank), life.born)

    def _page_of(self, life: Life) -> tuple[Told, float | None]:
        """Counts of a life and whether it is up: nothing where another life of its rank is told.

        The exporter looks at the board every 0.75 s: a life can be over before it was seen.
        """
        page, rank = self._exporter.page(), str(life.rank)
        if page.start.get(rank, 0.0) < life.born:
            return {}, None
        return page.counts.get(rank, {}), page.up.get(rank)

    # -- waiting --------------------------------------------------------------------------------

    def _wait_for_end(self, life: Life, code: int) -> None:
        with self._change:
            assert self._change.wait_for(lambda: life.pid in self._ended, PATIENCE_SECONDS)
            found = self._ended[life.pid]
        if found != code:
            life.problems.append(f"it ended with {found}, not {code}")

    def _wait(self, life: Life, what: str, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited in vain until {what}")
            if life.pid in self._ended and not life.ended:
                raise RuntimeError(f"it ended by itself with {self._ended[life.pid]}")
            time.sleep(_LOOK_SECONDS)

    def close(self) -> list[str]:
        """End the nursery; what workers wrote on standard error."""
        assert self._nursery.stdin is not None
        self._nursery.stdin.close()
        try:
            self._nursery.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            for life in self.current.values():
                if life.pid not in self._ended:
                    os.kill(life.pid, signal.SIGKILL)
            self._nursery.wait(PATIENCE_SECONDS)
        self._stderr.close()
        return (self._folder / "workers.log").read_text().splitlines()
