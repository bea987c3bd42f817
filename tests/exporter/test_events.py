"""One JSON line per overflow, overrun and death, each exactly once."""

from __future__ import annotations

import io
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from slot_worker import CONTEXT, CRASH_PLAN, DECODE

from ws_guard.board import OVERFLOW, OVERRUN, Outcome
from ws_guard.board.format import EXACT_ROWS
from ws_guard.exporter.events import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen

    from conftest import Attach

    from ws_guard.exporter.snapshot import BoardWatch


Lines: TypeAlias = list[dict[str, Any]]


class Teller:
    """An event log, and the lines that it wrote since it was last asked."""

    def __init__(self, watch: BoardWatch) -> None:
        self._watch = watch
        self._stream = io.StringIO()
        self.log = EventLog(self._stream)

    def news(self, reads: int = 1) -> Lines:
        for _ in range(reads):
            self.log.note(self._watch.read())
        lines = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        self._stream.seek(0)
        self._stream.truncate()
        return lines


@pytest.fixture
def teller(watch: BoardWatch) -> Teller:
    return Teller(watch)


def test_an_overflow_tells_all_that_is_known(attach: Attach, teller: Teller) -> None:
    worker = attach(planned=[CRASH_PLAN])
    worker.call(3_080)
    assert teller.news() == []
    worker.overflow(3_081)
    (line,) = teller.news()
    moment = datetime.fromisoformat(line.pop("time"))
    assert abs(moment.timestamp() - worker.slot.attached_ns / 1e9) < 60
    assert line == {
        "event": "overflow",
        "engine": "0",
        "rank": "0",
        "pid": line["pid"],
        "op": DECODE,
        "action": "observed",
        "workspace": "ws0",
        "batch": 3_081,
        "heads": 64,
        "q_len": 1,
        "need_bytes": 413_270_016,
        "workspace_bytes": 413_138_944,
        "slab": "trtllm_gen_softmax_workspace",
        "slab_bytes": 404_881_408,
        "available_bytes": 404_750_336,
        "overflow_threshold_batch": 3_080,
        # What the plan advises, since its worst step needs more than this one.
        "recommended_workspace_bytes": 2_561_671_168,
        "env": {"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "2561671168"},
    }
    assert teller.news(3) == []


def test_without_a_plan_the_call_itself_is_the_measure(attach: Attach, teller: Teller) -> None:
    attach().overflow(3_081)
    (line,) = teller.news()
    # 413,138,944 + 404,881,408.
    assert (line["recommended_workspace_bytes"], line["env"]) == (818_020_352, {})


def test_a_plan_that_was_too_small_is_no_advice(attach: Attach, teller: Teller) -> None:
    attach(planned=[CRASH_PLAN | {"recommended_workspace_bytes": 1_000}]).overflow(3_081)
    (line,) = teller.news()
    assert (line["recommended_workspace_bytes"], line["env"]) == (818_020_352, {})


def test_an_overrun_names_the_scratch(attach: Attach, teller: Teller) -> None:
    worker = attach(layout="C")
    worker.event(OVERRUN)
    worker.call(74, workspace_bytes=12 << 20, outcome=Outcome.OVERRUN)
    (line,) = teller.news()
    assert (line["event"], line["slab"]) == ("overrun", "trtllm_gen_scratch_workspace")
    # 12 MiB less stats of 131,072 * 74 + 1,048,576 bytes.
    assert (line["slab_bytes"], line["available_bytes"]) == (9_775_104, 1_835_008)


def test_events_before_the_exporter_started_are_told(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    for batch in (4_000, 5_000):
        worker.overflow(batch)
    assert [line["batch"] for line in Teller(watch).news()] == [4_000, 5_000]


def test_several_between_two_reads_are_several_lines(attach: Attach, teller: Teller) -> None:
    worker = attach()
    worker.overflow(4_000)
    teller.news()
    for batch in (5_000, 6_000, 5_000):
        worker.overflow(batch)
    assert [line["batch"] for line in teller.news()] == [5_000, 6_000, 5_000]


def test_more_than_the_ring_holds_are_counted(attach: Attach, teller: Teller) -> None:
    worker = attach()
    for _ in range(1_500):
        worker.overflow(4_000)
    lines = teller.news(2)
    assert len(lines) == 1_024 + 1
    assert (lines[-1]["event"], lines[-1]["count"]) == ("overflow", 1_500 - 1_024)
    assert teller.news(3) == []


def test_an_event_counted_before_it_is_in_the_ring_is_waited_for(
    attach: Attach, teller: Teller
) -> None:
    worker = attach()
    worker.event(OVERFLOW)
    assert teller.news() == []
    worker.call(4_000, outcome=Outcome.OVERFLOW)
    assert [line.get("batch") for line in teller.news(3)] == [4_000]


def test_an_event_in_the_ring_before_it_is_counted_is_told_once(
    attach: Attach, teller: Teller
) -> None:
    worker = attach()
    worker.call(4_000, outcome=Outcome.OVERFLOW)
    assert teller.news(2) == []
    worker.event(OVERFLOW)
    assert [line.get("batch") for line in teller.news(3)] == [4_000]


def test_an_event_that_never_comes_into_the_ring_is_told_by_its_number(
    attach: Attach, teller: Teller
) -> None:
    worker = attach()
    worker.event(OVERFLOW, "raised", op=1, count=2)
    (line,) = teller.news(3)
    assert (line["op"], line["action"], line["count"]) == (CONTEXT, "raised", 2)
    worker.overflow(4_000)
    assert [line["batch"] for line in teller.news(2)] == [4_000]


def test_an_event_that_is_taken_back_makes_room_for_the_next(
    attach: Attach, teller: Teller
) -> None:
    worker = attach()
    worker.overflow(4_000)
    assert len(teller.news()) == 1
    worker.event(OVERFLOW, count=-1)
    assert teller.news(2) == []
    worker.overflow(5_000)
    assert [line["batch"] for line in teller.news()] == [5_000]


@pytest.mark.parametrize(
    ("outcome", "action"), [(Outcome.RAISED, "raised"), (Outcome.SPLIT, "split")]
)
@pytest.mark.parametrize(
    ("kind", "batch", "size", "event"),
    [(OVERFLOW, 3_081, 413_138_944, "overflow"), (OVERRUN, 74, 12 << 20, "overrun")],
)
def test_what_was_done_about_it(
    attach: Attach,
    teller: Teller,
    outcome: Outcome,
    action: str,
    kind: int,
    batch: int,
    size: int,
    event: str,
) -> None:
    worker = attach(layout="B" if kind == OVERFLOW else "C")
    worker.event(kind, action)
    worker.call(batch, workspace_bytes=size, outcome=outcome)
    (line,) = teller.news()
    assert (line["event"], line["action"], line["batch"]) == (event, action, batch)


def test_a_folded_call_is_marked(attach: Attach, teller: Teller) -> None:
    worker = attach()
    for serial in range(EXACT_ROWS):
        worker.call(1, first_seen_ns=serial + 1, outcome=None)
    worker.overflow(4_000)
    (line,) = teller.news()
    assert (line["batch"], line["folded"]) == (4_000, True)


def test_an_unknown_layout_tells_what_is_left(attach: Attach, teller: Teller) -> None:
    attach(layout=None).overflow(4_000)
    (line,) = teller.news()
    assert (line["batch"], line["need_bytes"], line["slab"]) == (4_000, None, None)


def test_a_death_is_told_once(
    spawn: Callable[..., Popen[str]], watch: BoardWatch, teller: Teller
) -> None:
    process = spawn(rank="3")
    assert teller.news() == []
    process.kill()
    process.wait()
    (line,) = teller.news()
    assert (line["event"], line["engine"], line["rank"]) == ("death", "0", "3")
    assert line["pid"] == process.pid
    assert teller.news(2) == []
    assert len(Teller(watch).news()) == 1  # a new exporter tells what it finds


def test_the_last_words_come_before_the_death(attach: Attach, teller: Teller) -> None:
    worker = attach()
    worker.overflow(12_288)
    worker.event(OVERFLOW, "raised")  # counted, but it died before the ring
    worker.die()
    told = [(line["event"], line.get("count")) for line in teller.news()]
    assert told == [("overflow", None), ("overflow", 1), ("death", None)]


def test_a_superseded_worker_is_told_of_too(attach: Attach, teller: Teller) -> None:
    old = attach()
    old.overflow(4_000)
    old.die()
    attach()
    assert [line["event"] for line in teller.news()] == ["overflow", "death"]


def test_a_clean_end_is_no_event(attach: Attach, teller: Teller) -> None:
    worker = attach()
    teller.news()
    worker.close()
    assert teller.news() == []


def test_a_board_that_fails_for_a_moment_repeats_nothing(
    attach: Attach, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach().overflow(4_000)
    assert len(teller.news()) == 1
    monkeypatch.setattr("ws_guard.board.Board.check", lambda _: (_ for _ in ()).throw(OSError(5)))
    assert teller.news() == []
    monkeypatch.undo()
    assert teller.news(2) == []


def test_the_newest_events_are_kept_for_the_page(attach: Attach, teller: Teller) -> None:
    worker = attach()
    for batch in range(4_000, 4_060):
        worker.overflow(batch)
    teller.news()
    assert [event["batch"] for event in teller.log.recent] == list(range(4_059, 4_009, -1))


def test_a_log_that_nobody_reads_stops_nothing(attach: Attach, watch: BoardWatch) -> None:
    attach().overflow(4_000)
    stream = io.StringIO()
    stream.close()
    log = EventLog(stream)
    log.note(watch.read())
    assert len(log.recent) == 1
