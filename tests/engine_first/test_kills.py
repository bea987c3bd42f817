"""Workers killed at random points of recording, beside readers that never pause.

A thousand with WS_GUARD_NIGHTLY=1 (`make nightly`), 25 otherwise. One reader is the exporter's own
in this process, the other `ws-guard serve` over HTTP.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from autopsy import Account, examine
from mortal import KINDS, PHASES
from watchers import Forks, HttpReader, SnapshotReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KILLS = 1_000 if os.environ.get("WS_GUARD_NIGHTLY") == "1" else 25
#: Dead slots stay until their rank has a new worker: both readers see each of them.
RANKS = 16
#: Seconds within which a life is ended, from its start or once it records.
EARLY, LATE = 0.02, 0.03
PATIENCE = 60.0
#: How often each kind of life is led; a full table of rows takes long to fill, and to read.
WEIGHTS = dict(zip(KINDS, (3, 4, 3, 1, 4), strict=True))


@pytest.fixture
def board() -> Iterator[Path]:
    """In memory, as the default one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ws_guard-test-") as path:
        yield Path(path)


def wait_until(holds: Callable[..., bool], *arguments: object) -> None:
    end = time.monotonic() + PATIENCE
    while not holds(*arguments):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


class Undertaker:
    """Begins lives and ends them, and knows which deaths the readers have to tell."""

    def __init__(self, board: Path, seed: int) -> None:
        self.board = board
        self.chance = random.Random(seed)  # noqa: S311 - no secret
        self.forks = Forks(board)
        self.beside = SnapshotReader(board)
        self.readers = [self.beside, HttpReader(board)]
        self.phases: Counter[int] = Counter()
        self.torn = self.mourned = self.slots = 0
        self._owed: dict[int, int] = {}

    def life(self, number: int, where: Path) -> None:
        """One life and its end."""
        rank = number % RANKS
        if rank in self._owed:
            # The next worker of this rank clears the slot away.
            for reader in self.readers:
                wait_until(reader.has_seen_death_of, self._owed[rank])
            del self._owed[rank]
        (kind,) = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        account = Account(where / f"account{number}")
        pid = self.forks.begin(kind, rank, str(account.path))
        self.beside.follow(pid, account)
        if self.chance.random() < 0.25:
            time.sleep(self.chance.uniform(0, EARLY))
        else:
            wait_until(lambda: account.ready)
            time.sleep(self.chance.uniform(0, LATE))
        os.kill(pid, signal.SIGKILL)
        assert self.forks.end_of(pid) == -signal.SIGKILL
        self.phases[account.phase] += 1
        for found in examine(self.board, pid, account):
            self.slots += 1
            self.torn += found.torn
            if found.must_be_mourned:
                self.mourned += 1
                self._owed[rank] = pid
        self.beside.unfollow(pid)
        account.close()

    def finish(self) -> None:
        for pid in self._owed.values():
            for reader in self.readers:
                wait_until(reader.has_seen_death_of, pid)

    def stop(self) -> None:
        self.forks.stop()
        for reader in self.readers:
            reader.stop()


@pytest.mark.timeout(3600)
def test_no_kill_leaves_anything_torn_or_unseen(board: Path, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    undertaker = Undertaker(board, seed)
    try:
        for number in range(KILLS):
            undertaker.life(number, tmp_path)
        undertaker.finish()
    finally:
        undertaker.stop()
    for reader in undertaker.readers:
        assert reader.problems == []
        assert reader.deaths.total() == undertaker.mourned
        assert set(reader.deaths.values()) <= {1}, "each death is told once"
    assert sum(undertaker.phases.values()) == KILLS
    reads = [(reader.reads, reader.late) for reader in undertaker.readers]
    print(f"{KILLS} kills, {undertaker.slots} slots, {undertaker.mourned} deaths")
    print(f"(reads, late ones) {reads}, {undertaker.torn} folded rows torn; in the middle of:")
    for phase, count in sorted(undertaker.phases.items()):
        print(f"  {PHASES[phase]}: {count}")
