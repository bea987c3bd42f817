"""Real calls in forked workers: each has a slot of its own, and leaves it behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flashinfer_calls import MIB, PUBLIC_CALLS, Shape, workspace
from probed_board import calls_by_mode, probed, slots

from ws_guard.board import OVERFLOW, Outcome, SlotView
from ws_guard.launcher import Recorder, on_cpu
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection


FORK = multiprocessing.get_context("fork")


@pytest.fixture
def attached(native_library: Path, board: str) -> Iterator[Recorder]:
    """This process is a worker, before it forks others."""
    with on_cpu(native_library) as recorder, probed(board):
        yield recorder


def by_pid(board: str) -> dict[int, SlotView]:
    return {slot.pid: slot for slot in slots(board)}


def work(orders: Connection, call: Callable[[], Any]) -> None:
    """A forked worker: one call for every order, until there are no more."""
    while orders.recv():
        with contextlib.suppress(RuntimeError):
            call()
        orders.send(os.getpid())


@pytest.mark.usefixtures("attached")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_worker_opens_its_own_slot_at_its_first_call(board: str) -> None:
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))
    call()
    orders, theirs = multiprocessing.Pipe()
    child = FORK.Process(target=work, args=(theirs, call), daemon=True)
    child.start()
    assert child.pid is not None
    # Forked, and no call yet: the parent's slot alone, alive and untouched.
    assert {pid: slot.alive for pid, slot in by_pid(board).items()} == {os.getpid(): True}
    for count in (1, 2):
        orders.send(True)
        orders.recv()
        found = by_pid(board)
        assert calls_by_mode(found[child.pid])["eager"] == count
        assert calls_by_mode(found[os.getpid()])["eager"] == 1
        assert found[child.pid].alive
    call()
    assert calls_by_mode(by_pid(board)[os.getpid()])["eager"] == 2
    # A clean exit takes the child's slot away, and leaves the parent's.
    orders.send(False)
    child.join(timeout=60)
    assert child.exitcode == 0
    assert {pid: slot.alive for pid, slot in by_pid(board).items()} == {os.getpid(): True}


def die_of_overflow(fits: Callable[[], Any], refused: Callable[[], Any]) -> None:
    fits()
    try:
        refused()
    except RuntimeError:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("attached")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_worker_killed_at_once_leaves_its_overflow_behind(board: str) -> None:
    buffer = workspace(DEFAULT_WORKSPACE_BYTES)
    fits, refused = (
        PUBLIC_CALLS["sparse_mla"].build(Shape(batch, lse=True), buffer) for batch in (24, 12_288)
    )
    child = FORK.Process(target=die_of_overflow, args=(fits, refused), daemon=True)
    child.start()
    child.join(timeout=60)
    assert child.exitcode == -signal.SIGKILL
    assert child.pid is not None
    dead = by_pid(board)[child.pid]
    assert (dead.alive, dead.closed) == (False, False)
    assert [(call.shape.batch, call.outcome) for call in dead.calls] == [
        (24, Outcome.EAGER),
        (12_288, Outcome.OVERFLOW),
    ]
    assert [(kind, count) for (_, kind, _), count in dead.events.items()] == [(OVERFLOW, 1)]
    assert dead.attached_ns < dead.last_overflow_ns
    # Nothing of it is the parent's.
    assert by_pid(board)[os.getpid()].alive
    assert by_pid(board)[os.getpid()].events == {}
