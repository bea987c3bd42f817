"""Provisions of an installed probe: their ticking thread, from the first one to the end."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from fresh_python import python
from slot_views import ReadSlot, destroyed_zones

import ws_guard
from ws_guard import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ws_guard import Plan, Probe


@pytest.fixture
def probe(board: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    monkeypatch.setenv("WS_GUARD_ZONE_INTERVAL", "0.01")
    probe = ws_guard.install(board=board)
    yield probe
    probe.uninstall()


def ticking() -> int:
    return sum(thread.name == "ws_guard" for thread in threading.enumerate())


def test_its_thread_lives_from_the_first_provision_to_uninstall(probe: Probe, plan: Plan) -> None:
    assert ticking() == 0
    made = [ws_guard.provision(plan, "cpu", workspace_bytes=64) for _ in range(2)]
    assert len({each.address for each in made}) == 2
    assert ticking() == 1
    probe.uninstall()
    assert ticking() == 0
    with pytest.raises(InputError, match=r"nothing is instrumented here \(uninstalled\)"):
        probe.provision(plan, "cpu", workspace_bytes=64)


def test_a_zone_is_looked_at_by_itself(probe: Probe, plan: Plan, slot: ReadSlot) -> None:
    made = probe.provision(plan, "cpu", workspace_bytes=64)
    torch.tensor([], dtype=torch.uint8).set_(made.workspace.untyped_storage())[64:72] = 0
    end = time.monotonic() + 20
    while not destroyed_zones(slot()):
        assert time.monotonic() < end
        time.sleep(0.005)
    assert [zone["destroyed_bytes"] for zone in destroyed_zones(slot())] == [8]


def test_switched_off_it_is_refused(
    board: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WS_GUARD_ENABLED", "0")
    probe = ws_guard.install(board=board)
    try:
        with pytest.raises(InputError, match="switched off"):
            ws_guard.provision(plan, "cpu", workspace_bytes=64)
    finally:
        probe.uninstall()


# Python 3.12 warns of forks beside threads, which is what this is about.
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_ticker(probe: Probe, plan: Plan) -> None:
    made = probe.provision(plan, "cpu", workspace_bytes=64)
    pid = os.fork()
    if pid == 0:
        fine = ticking() == 0 and probe._parts is not None and not probe._parts.ticker._jobs
        os._exit(0 if fine and made.bytes == 64 else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ticking() == 1


def test_an_interpreter_ends_well_with_a_live_zone(board: str) -> None:
    script = (
        "import atexit, threading, time, torch, ws_guard\n"
        # Registered first and called last: the interpreter must not have to kill the thread.
        "atexit.register(lambda: print([each.name for each in threading.enumerate()]))\n"
        "plan = ws_guard.plan(heads=64, max_num_batched_tokens=64, flashinfer='0.6.14')\n"
        f"ws_guard.install(board={board!r})\n"
        "ws_guard.provision(plan, 'cpu', workspace_bytes=64)\n"
        "time.sleep(0.1)\n"
        "print('the end')\n"
    )
    assert python(script, WS_GUARD_ZONE_INTERVAL="0.01") == ["the end", "['MainThread']"]
    # It left the board in good order.
    assert os.listdir(board) == []
