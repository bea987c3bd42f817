"""The guard zone behind a provisioned workspace, on the CPU: told in time, once, with its calls."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from meetings import DECODE, MIB, Meetings, health
from slot_views import ReadSlot, destroyed_zones

from ws_guard.board import OVERRUN, Board
from ws_guard.exporter.events import EventLog
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.probe.parts import Parts
from ws_guard.probe.provisions import Provision, _Watch, allocate
from ws_guard.probe.ticker import Ticker
from ws_guard.probe.zone import Look

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard import Plan
    from ws_guard.probe.recorder import Recorder


def buffer() -> torch.Tensor:
    return torch.zeros(16 * MIB, dtype=torch.uint8)


class Watched:
    """Meetings whose ticker ticks when told to."""

    def __init__(self, meetings: Meetings, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        self.meetings = meetings
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
def watched(meet: Callable[..., Meetings], plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(meet("C"), plan, monkeypatch)


@pytest.mark.parametrize("ticks_before", [0, 1, 2, 3])
def test_an_overrun_is_told_within_two_ticks(
    watched: Watched, slot: ReadSlot, ticks_before: int
) -> None:
    watched.tick(ticks_before)
    own = buffer()
    watched.meetings.call(own)
    watched.write_behind(290_816)
    watched.tick(2)
    (zone,) = destroyed_zones(slot())
    assert (zone["workspace"], zone["destroyed_bytes"]) == ("ws0", 290_816)
    assert zone["calls"] == [{"op": DECODE, "batch": 16, "heads": 64, "q_len": 1, "lse": True}]
    assert zone["since"] <= zone["until"]
    assert slot().events == {(0, OVERRUN, "observed"): 1}


def test_two_ticks_are_less_than_the_interval(recorder: Recorder) -> None:
    ticker = Parts.of(recorder, interval=0.5).ticker
    assert 0 < 2 * ticker._interval < 0.5


def test_it_is_told_and_counted_once_and_painted_again(watched: Watched, slot: ReadSlot) -> None:
    watched.meetings.call(buffer())
    watched.write_behind(8)
    watched.tick(6)
    assert [zone["destroyed_bytes"] for zone in destroyed_zones(slot())] == [8]
    assert slot().events == {(0, OVERRUN, "observed"): 1}
    watched.write_behind(80)
    watched.tick(6)
    assert [zone["destroyed_bytes"] for zone in destroyed_zones(slot())] == [8, 80]
    assert slot().events == {(0, OVERRUN, "observed"): 2}


def test_only_calls_since_the_last_good_look_are_named(watched: Watched, slot: ReadSlot) -> None:
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
    (zone,) = destroyed_zones(slot())
    # 17 was the run under way at that look: until 18 came it may have gone on.
    assert [call["batch"] for call in zone["calls"]] == [17, 18, 19]


def test_a_caller_beyond_the_names_is_told_as_other(watched: Watched, slot: ReadSlot) -> None:
    large = [torch.zeros(128 * MIB, dtype=torch.uint8) for _ in range(8)]
    for each in large:
        watched.meetings.call(each)
    watched.meetings.call(buffer(), batch=20)
    watched.write_behind(8)
    watched.tick(2)
    (zone,) = destroyed_zones(slot())
    assert (zone["workspace"], [call["batch"] for call in zone["calls"]]) == ("other", [20])


def test_an_overrun_that_was_certain_at_its_call_counts_once(
    watched: Watched, slot: ReadSlot
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
    assert len(destroyed_zones(slot())) == 1


def test_nobody_known_to_have_called_is_an_overrun_all_the_same(
    watched: Watched, slot: ReadSlot
) -> None:
    watched.write_behind(8)
    watched.tick(2)
    (zone,) = destroyed_zones(slot())
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
    look = _Watch(watched.ours._replace(zone=zone), watched.meetings.parts.graphs, never)
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


def never(*_: object) -> None:
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
