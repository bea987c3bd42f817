"""The guard zone behind a provisioned workspace, on the CPU: told in time, once, with its calls."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from meetings import DECODE, MIB, Meetings, health

import ws_guard
from ws_guard import InputError
from ws_guard.board import OVERRUN, Board
from ws_guard.exporter.events import EventLog
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.probe.parts import Parts
from ws_guard.probe.provisions import Provision, _Watch, allocate
from ws_guard.probe.ticker import Ticker
from ws_guard.probe.zone import Look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ws_guard import Plan, Probe
    from ws_guard.board import SlotView


@pytest.fixture(scope="module")
def plan() -> Plan:
    return ws_guard.plan(heads=64, max_num_batched_tokens=64, flashinfer="0.6.14", sm_count=148)


def buffer() -> torch.Tensor:
    return torch.zeros(16 * MIB, dtype=torch.uint8)


class Watched:
    """Meetings whose ticker ticks when told to."""

    def __init__(self, board: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        self.meetings = Meetings(board, "C")
        jobs: list[Callable[[], bool]] = []
        monkeypatch.setattr(Ticker, "add", lambda _self, job: jobs.append(job))
        self.ours: Provision = allocate(plan, "cpu", 64 * MIB, MIB)
        self.meetings.parts.provisions.add(self.ours)
        (self._look,) = jobs

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            assert self._look() is True

    def write_behind(self, count: int) -> None:
        """What a kernel does that takes its scratch for larger."""
        storage = self.ours.workspace.untyped_storage()
        memory = torch.tensor([], dtype=torch.uint8).set_(storage)
        memory[self.ours.bytes : self.ours.bytes + count] = 0


@pytest.fixture
def watched(board: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched(board, plan, monkeypatch)
    yield watched
    watched.meetings.close()


def zones(slot: SlotView) -> list[dict[str, Any]]:
    return list(slot.document.get("destroyed_zones", []))


@pytest.mark.parametrize("ticks_before", [0, 1, 2, 3])
def test_an_overrun_is_told_within_two_ticks(
    watched: Watched, slot: Callable[[], SlotView], ticks_before: int
) -> None:
    watched.tick(ticks_before)
    own = buffer()
    watched.meetings.call(own)
    watched.write_behind(290_816)
    watched.tick(2)
    (zone,) = zones(slot())
    assert (zone["workspace"], zone["destroyed_bytes"]) == ("ws0", 290_816)
    assert zone["calls"] == [{"op": DECODE, "batch": 16, "heads": 64, "q_len": 1, "lse": True}]
    assert zone["since"] <= zone["until"]
    assert slot().events == {(0, OVERRUN, "observed"): 1}


def test_two_ticks_are_less_than_the_interval(recorder: Any) -> None:
    ticker = Parts.of(recorder, interval=0.5).ticker
    assert 0 < 2 * ticker._interval < 0.5


def test_it_is_told_and_counted_once_and_painted_again(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    watched.meetings.call(buffer())
    watched.write_behind(8)
    watched.tick(6)
    assert [zone["destroyed_bytes"] for zone in zones(slot())] == [8]
    assert slot().events == {(0, OVERRUN, "observed"): 1}
    watched.write_behind(80)
    watched.tick(6)
    assert [zone["destroyed_bytes"] for zone in zones(slot())] == [8, 80]
    assert slot().events == {(0, OVERRUN, "observed"): 2}


def test_only_calls_since_the_last_good_look_are_named(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    own, others = buffer(), buffer()
    for batch in (16, 17):
        watched.meetings.call(own, batch=batch)
    watched.tick(3)
    for batch in (18, 19, 19):
        watched.meetings.call(own, batch=batch)
    # Another workspace has no part in it.
    watched.meetings.call(others, batch=20)
    watched.write_behind(8)
    watched.tick(2)
    (zone,) = zones(slot())
    # 17 was the run under way at that look: until 18 came it may have gone on.
    assert [call["batch"] for call in zone["calls"]] == [17, 18, 19]


def test_a_caller_beyond_the_names_is_told_as_other(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    large = [torch.zeros(128 * MIB, dtype=torch.uint8) for _ in range(8)]
    for each in large:
        watched.meetings.call(each)
    watched.meetings.call(buffer(), batch=20)
    watched.write_behind(8)
    watched.tick(2)
    (zone,) = zones(slot())
    assert (zone["workspace"], [call["batch"] for call in zone["calls"]]) == ("other", [20])


def test_an_overrun_that_was_certain_at_its_call_counts_once(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    # 74 rows of 64 heads with a top-k of 2,048 write 9,775,104 bytes of scratch; 4,096 are left.
    stats = 8 * 64 * 74 * 256 + MIB
    told = {"says_bytes": stats + 4096, "max_kv_len": 2048}
    watched.meetings.call(watched.ours.workspace, batch=74, **told)
    before = slot().events
    assert before == {(0, OVERRUN, "observed"): 1}
    watched.write_behind(8)
    watched.tick(3)
    assert slot().events == before
    assert len(zones(slot())) == 1


def test_nobody_known_to_have_called_is_an_overrun_all_the_same(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
    watched.write_behind(8)
    watched.tick(2)
    (zone,) = zones(slot())
    assert (zone["workspace"], zone["calls"]) == ("provision", [])
    assert sum(slot().events.values()) == 1


def test_no_look_is_asked_for_while_a_graph_is_captured(watched: Watched) -> None:
    zone = watched.ours.zone
    with watched.meetings.capture():
        watched.tick(5)
        assert zone.answer().number == 0
    watched.tick()
    assert zone.answer().number == 1


class SlowZone:
    """A zone on a card that is busy: a look is answered when told to."""

    def __init__(self) -> None:
        self.looks, self._answer = 0, Look(1, 0)

    def look(self) -> None:
        self.looks += 1

    def answer(self) -> Look:
        return self._answer

    def repaint(self) -> None:
        raise AssertionError

    def come(self) -> None:
        self._answer = Look(self._answer.number + 1, 0)


def test_the_next_look_waits_for_the_answer_to_the_last(watched: Watched) -> None:
    zone = SlowZone()
    look = _Watch(watched.ours._replace(zone=zone), watched.meetings.parts.graphs, _never)
    for _ in range(4):
        look.tick()
    assert zone.looks == 1
    zone.come()
    look.tick()
    assert zone.looks == 2
    with watched.meetings.capture():
        zone.come()
        look.tick()
    assert zone.looks == 2


def _never(*_: object) -> None:
    raise AssertionError


def test_the_exporter_tells_it(watched: Watched, board: str) -> None:
    watched.meetings.call(buffer())
    watched.write_behind(4096)
    watched.tick(2)
    found = health(board)
    (worker,) = found["workers"]
    (zone,) = worker["destroyed_zones"]
    assert (zone["workspace"], zone["destroyed_bytes"]) == ("ws0", 4096)
    assert [call["batch"] for call in zone["calls"]] == [16]
    (check,) = (each for each in found["checks"] if each["name"] == "no_overrun")
    assert (check["state"], found["ready"]) == ("fail", False)
    assert "ws0: 4,096 bytes behind it lost" in check["detail"]
    lines = io.StringIO()
    log = EventLog(lines)
    for _ in range(2):  # it waits once for a call in the ring
        log.note(BoardWatch(Board(board)).read())
    (line,) = map(json.loads, lines.getvalue().splitlines())
    assert (line["event"], line["action"], line["op"]) == ("overrun", "observed", DECODE)
    assert line["destroyed_zone"] == zone


# -- its life -------------------------------------------------------------------------------------


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


def test_a_zone_is_looked_at_by_itself(
    probe: Probe, plan: Plan, slot: Callable[[], SlotView]
) -> None:
    made = probe.provision(plan, "cpu", workspace_bytes=64)
    torch.tensor([], dtype=torch.uint8).set_(made.workspace.untyped_storage())[64:72] = 0
    end = time.monotonic() + 20
    while not zones(slot()):
        assert time.monotonic() < end
        time.sleep(0.005)
    assert [zone["destroyed_bytes"] for zone in zones(slot())] == [8]


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
        "import time, torch, ws_guard\n"
        "plan = ws_guard.plan(heads=64, max_num_batched_tokens=64, flashinfer='0.6.14')\n"
        f"ws_guard.install(board={board!r})\n"
        "ws_guard.provision(plan, 'cpu', workspace_bytes=64)\n"
        "time.sleep(0.1)\n"
        "print('the end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "WS_GUARD_ZONE_INTERVAL": "0.01"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
    # It left the board in good order.
    assert os.listdir(board) == []
