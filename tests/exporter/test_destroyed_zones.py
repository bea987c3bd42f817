"""Warnings and destroyed guard zones: in /health, on the page, in the checks, in lines."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slot_worker import CONTEXT, DECODE
from strange import JSON, patient

from ws_guard.board import OVERRUN, Outcome
from ws_guard.exporter.document import parse_document
from ws_guard.exporter.events import EventLog

if TYPE_CHECKING:
    from conftest import Ask, Attach, Get

    from ws_guard.exporter.snapshot import BoardWatch


WARNING = "ws0: its counter was not zero at the first call seen"
CALL = {"op": DECODE, "batch": 74, "heads": 64, "q_len": 1, "lse": True}
ZONE: dict[str, Any] = {
    "workspace": "ws0",
    "destroyed_bytes": 290_816,
    "since": 1_000.25,
    "until": 1_001.5,
    "calls": [CALL],
}
#: The same as the exporter tells it.
TOLD = {
    "workspace": "ws0",
    "destroyed_bytes": 290_816,
    "since_timestamp_seconds": 1_000.25,
    "until_timestamp_seconds": 1_001.5,
    "calls": [CALL],
}


def worker_in(health: dict[str, Any]) -> dict[str, Any]:
    (worker,) = health["workers"]
    return dict(worker)


def test_health_tells_both(attach: Attach, get: Get) -> None:
    attach(warnings=[WARNING], destroyed_zones=[ZONE]).call(5)
    worker = worker_in(get("/health").json())
    assert (worker["warnings"], worker["destroyed_zones"]) == ([WARNING], [TOLD])
    (listed,) = get("/api/v1/workers").json()["workers"]
    assert listed["destroyed_zones"] == [TOLD]


def test_a_worker_that_tells_of_neither_has_neither(attach: Attach, get: Get) -> None:
    attach().call(5)
    worker = worker_in(get("/health").json())
    assert (worker["warnings"], worker["destroyed_zones"]) == ([], [])


def test_a_warning_is_no_failed_check(attach: Attach, get: Get) -> None:
    attach(warnings=[WARNING]).call(5)
    states = {check["name"]: check["state"] for check in get("/health").json()["checks"]}
    assert "fail" not in states.values()


def test_a_destroyed_zone_is_told_beside_its_overrun(attach: Attach, ask: Ask) -> None:
    worker = attach(destroyed_zones=[ZONE, ZONE | {"destroyed_bytes": None}])
    worker.call(5)
    # The counter is what latches; a document alone counts nothing.
    assert ask("no_overrun") == ("ok", "")
    worker.event(OVERRUN)
    state, detail = ask("no_overrun")
    assert state == "fail"
    assert f"{DECODE}: overrun observed, 1 call" in detail
    assert "ws0: 290,816 bytes behind it lost" in detail
    assert "ws0: ? bytes behind it lost" in detail


def lines_of(watch: BoardWatch, reads: int = 3) -> list[dict[str, Any]]:
    stream = io.StringIO()
    log = EventLog(stream)
    for _ in range(reads):
        log.note(watch.read())
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_its_line_names_the_calls(attach: Attach, watch: BoardWatch) -> None:
    worker = attach(destroyed_zones=[ZONE | {"destroyed_bytes": 8}, ZONE])
    worker.call(5)
    worker.event(OVERRUN)
    (line,) = lines_of(watch)
    assert (line["event"], line["op"], line["action"]) == ("overrun", DECODE, "observed")
    assert (line["count"], line["destroyed_zone"]) == (1, TOLD)


def test_an_overrun_in_the_ring_is_told_by_its_call(attach: Attach, watch: BoardWatch) -> None:
    worker = attach(layout="C", destroyed_zones=[ZONE])
    worker.event(OVERRUN)
    worker.call(74, workspace_bytes=12 << 20, outcome=Outcome.OVERRUN)
    (line,) = lines_of(watch)
    assert (line["batch"], "destroyed_zone" in line) == (74, False)


def test_the_page_shows_warnings_once_and_as_text(attach: Attach, get: Get) -> None:
    for rank in ("0", "1"):
        attach(rank=rank, warnings=[WARNING, "<img src=x>"])
    page = get("/").text
    assert page.count(WARNING) == 1
    assert "<img" not in page
    assert "&lt;img src=x&gt;" in page


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ({}, ("other", None, None, None, ())),
        (ZONE | {"destroyed_bytes": -1, "calls": None}, ("ws0", None, 1_000.25, 1_001.5, ())),
        (ZONE | {"since": True, "until": "now", "calls": []}, ("ws0", 290_816, None, None, ())),
        (ZONE | {"since": 1e300, "until": -1.0, "calls": []}, ("ws0", 290_816, None, None, ())),
        (ZONE | {"workspace": ["ws0"], "calls": 3}, ("other", 290_816, 1_000.25, 1_001.5, ())),
    ],
)
def test_what_a_zone_tells_wrongly_is_not_told(told: dict[str, Any], known: Any) -> None:
    (zone,) = parse_document({"destroyed_zones": [told]}).destroyed_zones
    found = (
        zone.workspace,
        zone.destroyed_bytes,
        zone.since_timestamp_seconds,
        zone.until_timestamp_seconds,
        zone.calls,
    )
    assert found == known


def test_what_a_call_tells_wrongly_is_not_told() -> None:
    calls = [CALL, {"op": CONTEXT, "batch": "74", "heads": -1, "q_len": None, "lse": 1}, "call", 3]
    (zone,) = parse_document({"destroyed_zones": [ZONE | {"calls": calls}]}).destroyed_zones
    first, second = zone.calls
    assert (first.op, first.batch, first.heads, first.q_len, first.lse) == tuple(CALL.values())
    assert (second.op, second.batch, second.heads, second.q_len, second.lse) == (
        CONTEXT,
        *[None] * 4,
    )


@patient
@given(st.lists(st.dictionaries(st.sampled_from(list(ZONE)), JSON) | JSON))
def test_no_zone_is_too_strange(told: list[Any]) -> None:
    document = parse_document({"destroyed_zones": told, "warnings": told})
    assert len(document.destroyed_zones) <= 16
    assert len(document.warnings) <= 16
    texts = [zone.workspace for zone in document.destroyed_zones]
    assert all(text.isprintable() for text in [*texts, *document.warnings])
