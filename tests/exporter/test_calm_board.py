"""Slots that are as they were are not read again; what happens to one is seen at the next read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ws_guard.board.format import EXACT_ROWS, Header
from ws_guard.exporter.lives import KEEP_DEAD_SECONDS
from ws_guard.exporter.snapshot import BoardWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen

    from conftest import Attach, Clock

    from ws_guard.board import Board


def settle(watch: BoardWatch) -> None:
    """Read until nothing is read again: after a change, two reads look at all."""
    for _ in range(3):
        watch.read()


def test_a_calm_board_keeps_what_was_made_of_it(attach: Attach, watch: BoardWatch) -> None:
    for rank in ("0", "1"):
        attach(rank=rank).call(5)
    settle(watch)
    before, after = watch.read(), watch.read()
    assert len(after.slots) == 2
    assert after.slots is before.slots
    assert after.roster is before.roster


@pytest.mark.parametrize("mode", ["eager", "captured", "replayed", "tuning"])
def test_one_more_call_is_seen_at_once(attach: Attach, watch: BoardWatch, mode: str) -> None:
    worker, other = attach(), attach(rank="1")
    worker.call(5, mode=mode)
    other.call(5)
    settle(watch)
    worker.call(5, mode=mode)
    first, second = watch.read().slots
    assert first.worker.ops[0].calls == {mode: 2}
    assert second.worker.ops[0].calls == {"eager": 1}


def test_a_count_that_shows_after_its_time_is_not_lost(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    worker.call(5)
    settle(watch)
    # Other processors may see the time of a call before its count.
    worker.slot.last_call[0] += 1.0
    watch.read()
    row, first_word, _ = next(iter(worker._rows.values()))
    assert row < EXACT_ROWS
    worker.slot.words[first_word + 9] += 1
    (observed,) = watch.read().slots
    assert observed.worker.ops[0].calls == {"eager": 2}


def test_an_event_and_an_error_are_seen_at_once(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    settle(watch)
    worker.event(0)
    assert watch.read().slots[0].worker.ops[0].overflows == {"observed": 1}
    settle(watch)
    worker.slot.add_probe_error()
    assert watch.read().slots[0].worker.probe_errors == 1
    settle(watch)
    worker.describe(contract="mismatch")
    assert watch.read().slots[0].worker.contract == "mismatch"


def test_a_death_is_seen_at_once(spawn: Callable[..., Popen[str]], watch: BoardWatch) -> None:
    process = spawn()
    settle(watch)
    process.kill()
    process.wait()
    (observed,) = watch.read().slots
    assert not observed.worker.alive


def test_a_lock_that_was_let_go_is_seen_at_once(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    settle(watch)
    worker.die()
    assert not watch.read().slots[0].worker.alive


def test_a_process_that_left_its_lock_to_a_child_is_seen_at_once(
    attach: Attach, watch: BoardWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach()
    settle(watch)
    # A child forked behind Python's back holds the lock on; the worker itself is gone.
    monkeypatch.setattr("ws_guard.board.liveness.exists", lambda _: False)
    monkeypatch.setattr("ws_guard.board.liveness.pid_start_ticks", lambda _: 0)
    assert not watch.read().slots[0].worker.alive


def test_what_is_done_to_the_files_is_seen_at_once(
    attach: Attach, watch: BoardWatch, board: Board
) -> None:
    worker, other = attach(), attach(rank="1")
    path = Path(board.path, worker.name)
    settle(watch)
    Path(board.path, "notes.txt").write_text("mine")
    assert watch.read().unreadable == ("no slot by its name",)
    Path(board.path, "notes.txt").unlink()
    assert watch.read().unreadable == ()
    settle(watch)
    Path(board.path, "hard").hardlink_to(path)
    assert "it has 2 links" in watch.read().unreadable
    Path(board.path, "hard").unlink()
    settle(watch)
    worker.slot.words[Header.CLOSED_NS] = 1
    assert [one.slot for one in watch.read().slots] == [other.name]
    settle(watch)
    os.truncate(Path(board.path, other.name), 40_000)
    assert watch.read().unreadable[0].startswith("it ends at byte")


def test_slots_that_change_names_change_workers(
    attach: Attach, watch: BoardWatch, board: Board
) -> None:
    one, other = attach(rank="1"), attach(rank="2")
    settle(watch)
    a, b, between = (Path(board.path, name) for name in (one.name, other.name, ".between"))
    a.rename(between)
    b.rename(a)
    between.rename(b)
    found = {seen.slot: seen.worker.rank for seen in watch.read().slots}
    assert found == {one.name: "2", other.name: "1"}


def test_another_directory_in_its_place_is_another_board(
    attach: Attach, watch: BoardWatch, board: Board
) -> None:
    attach()
    settle(watch)
    Path(board.path).rename(board.path + ".old")
    assert watch.read().state == "absent"
    Path(board.path).mkdir(mode=0o700)
    assert (watch.read().state, watch.read().slots) == ("read", ())


def test_a_worker_lived_as_long_as_the_board_was_calm(
    attach: Attach, watch: BoardWatch, clock: Clock
) -> None:
    worker = attach()
    settle(watch)
    clock.now += 5_000
    watch.read()
    worker.die()
    clock.now += KEEP_DEAD_SECONDS
    assert watch.read().forgotten == frozenset()
    clock.now += KEEP_DEAD_SECONDS
    assert watch.read().forgotten == {worker.name}


def test_a_board_that_was_away_for_a_moment_ends_no_life_early(
    attach: Attach, board: Board, clock: Clock
) -> None:
    begun = time.time() - clock.now
    watch, worker = BoardWatch(board, clock, lambda: begun + clock.now), attach()
    for _ in range(5):
        watch.read()
        clock.now += KEEP_DEAD_SECONDS
    away = board.path + ".away"
    os.rename(board.path, away)
    assert watch.read().state == "absent"
    os.rename(away, board.path)
    worker.die()
    # It was alive a moment ago: its last series stay for the time that the dead are kept.
    assert watch.read().forgotten == frozenset()
    clock.now += KEEP_DEAD_SECONDS + 1
    assert watch.read().forgotten == {worker.name}


def kill(process: Popen[str]) -> None:
    process.kill()
    process.wait()


def test_a_dead_worker_is_not_read_again(
    attach: Attach, spawn: Callable[..., Popen[str]], watch: BoardWatch
) -> None:
    worker = attach(rank="1")
    kill(spawn())
    settle(watch)
    before, after = watch.read(), watch.read()
    assert after.slots is before.slots
    # They come in the order of their files, which is that of process ids.
    alive, dead = sorted(after.slots, key=lambda one: not one.worker.alive)
    assert (alive.worker.alive, dead.worker.alive) == (True, False)
    # Nor is it where another is.
    worker.call(5)
    found = watch.read().slots
    assert not any(one is alive for one in found)
    assert any(one is dead for one in found)


def test_the_dead_of_a_calm_board_grow_old(
    spawn: Callable[..., Popen[str]], attach: Attach, watch: BoardWatch, clock: Clock
) -> None:
    living, process = attach(rank="1"), spawn()
    settle(watch)
    clock.now += 5_000
    settle(watch)
    kill(process)
    settle(watch)
    clock.now += KEEP_DEAD_SECONDS
    before = watch.read()
    assert before.forgotten == frozenset()
    clock.now += 1
    after = watch.read()
    assert after.slots is before.slots
    (dead,) = (one.slot for one in after.slots if one.slot != living.name)
    assert after.forgotten == {dead}
    assert watch.read() is not before


def test_what_is_done_to_the_file_of_a_dead_worker_is_seen_at_once(
    spawn: Callable[..., Popen[str]], watch: BoardWatch, board: Board
) -> None:
    processes = [spawn(rank=rank) for rank in ("1", "2")]
    ranks = {seen.slot: seen.worker.rank for seen in watch.read().slots}
    one, other = (Path(board.path, name) for name in sorted(ranks, key=lambda name: ranks[name]))
    for process in processes:
        kill(process)
    settle(watch)
    one.rename(one.with_name(".aside"))
    assert [seen.worker.rank for seen in watch.read().slots] == ["2"]
    settle(watch)
    one.with_name(".aside").rename(other)
    assert [seen.worker.rank for seen in watch.read().slots] == ["1"]
    settle(watch)
    with other.open("r+b") as file:
        file.seek(8 * Header.CLOSED_NS)
        file.write(b"\1")
    assert watch.read().slots == ()
    settle(watch)
    os.truncate(other, 40_000)
    assert watch.read().unreadable[0].startswith("it ends at byte")


def test_a_worker_whose_child_keeps_its_lock_for_a_while_is_dead_before_and_after(
    board: Board, watch: BoardWatch
) -> None:
    script = Path(__file__).parent / "slot_worker.py"
    process = subprocess.Popen(
        [sys.executable, str(script), board.path, "0", "5", "leave a child behind"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout
        child = int(process.stdout.readline())
        try:
            assert process.stdout.readline() == "attached\n"
            settle(watch)
            assert watch.read().slots[0].worker.alive
            process.kill()
            process.wait()
            assert not watch.read().slots[0].worker.alive
            settle(watch)
            before = watch.read()
            assert watch.read().slots is before.slots
        finally:
            os.kill(child, signal.SIGKILL)
        while Path(f"/proc/{child}").exists():
            time.sleep(0.01)
    assert not watch.read().slots[0].worker.alive
