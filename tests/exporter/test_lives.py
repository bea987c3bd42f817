"""How long the dead stay, whatever restarts or misses a read meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ws_guard.exporter.lives import KEEP_DEAD_SECONDS
from ws_guard.exporter.snapshot import BoardWatch

if TYPE_CHECKING:
    from conftest import Attach, Clock

    from ws_guard.board import Board


def test_dead_workers_are_forgotten_after_a_quarter_of_an_hour(
    attach: Attach, watch: BoardWatch, clock: Clock
) -> None:
    worker = attach()
    watch.read()
    clock.now += 5_000
    worker.die()
    assert watch.read().forgotten == frozenset()
    # Less what has passed since the slot last heard of its worker.
    clock.now += KEEP_DEAD_SECONDS - 60
    assert watch.read().forgotten == frozenset()
    clock.now += 61
    assert watch.read().forgotten == {worker.name}


def test_a_new_exporter_does_not_start_the_clock_of_the_dead_again(
    attach: Attach, board: Board, clock: Clock
) -> None:
    worker = attach()
    worker.call(5)
    worker.die()
    path = Path(board.path, worker.name)
    for age, gone in ((KEEP_DEAD_SECONDS - 60, False), (KEEP_DEAD_SECONDS + 60, True)):
        watch = BoardWatch(board, clock, lambda age=age: time.time() + age)
        assert watch.read().forgotten == (frozenset({worker.name}) if gone else frozenset())
    # The file itself may be younger than all that is written in it.
    later = time.time() + KEEP_DEAD_SECONDS
    os.utime(path, (later, later))
    assert watch.read().forgotten == {worker.name}  # but this one has made up its mind
    assert BoardWatch(board, clock, lambda: later).read().forgotten == frozenset()


def test_a_worker_that_was_seen_alive_is_as_old_as_that(
    attach: Attach, board: Board, clock: Clock
) -> None:
    # An engine may be idle for hours: so old is what its slot tells, and nobody has died.
    watch = BoardWatch(board, clock, lambda: time.time() + 5_000)
    worker = attach()
    watch.read()
    worker.die()
    assert watch.read().forgotten == frozenset()


def test_a_time_to_come_keeps_nobody_longer(attach: Attach, board: Board, clock: Clock) -> None:
    watch = BoardWatch(board, clock, lambda: time.time() - 5_000)
    worker = attach()
    worker.die()
    watch.read()
    clock.now += KEEP_DEAD_SECONDS + 1
    assert watch.read().forgotten == {worker.name}


def test_a_read_that_misses_a_dead_slot_starts_nothing_again(
    attach: Attach, board: Board, clock: Clock, watch: BoardWatch
) -> None:
    worker = attach()
    worker.die()
    watch.read()
    path, aside = Path(board.path, worker.name), Path(board.path, ".aside")
    clock.now += KEEP_DEAD_SECONDS - 60
    path.rename(aside)
    assert watch.read().slots == ()
    aside.rename(path)
    clock.now += 61
    assert watch.read().forgotten == {worker.name}
