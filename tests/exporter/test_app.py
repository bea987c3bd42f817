"""The routes, asked as Kubernetes, Prometheus and people ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from slot_worker import CRASH_PLAN, DECODE, FIXED_PLAN, ROUTES

from ws_guard.board import Board, Outcome

if TYPE_CHECKING:
    from conftest import Attach, Clock, Get

    from ws_guard.exporter.refresh import Refresher


def test_health_when_ready(attach: Attach, get: Get) -> None:
    attach(planned=[FIXED_PLAN], problems=["a line"]).call(3_000)
    answer = get("/health")
    body = answer.json()
    assert (answer.status_code, body["ready"]) == (200, True)
    assert [set(check) for check in body["checks"]] == [{"name", "state", "detail"}] * 7
    (worker,) = body["workers"]
    assert (worker["engine"], worker["rank"], worker["alive"]) == ("0", "0", True)
    assert worker["problems"] == ["a line"]


def test_the_numbers_of_health(attach: Attach, get: Get) -> None:
    worker = attach(planned=[CRASH_PLAN])
    worker.call(3_080)
    answer = get("/health")
    assert answer.status_code == 503
    (told,) = answer.json()["workers"]
    (site,) = told["workspaces"]
    assert (site["workspace"], site["workspace_bytes"]) == ("ws0", 413_138_944)
    assert (site["layout"], site["heads"]) == ("B", 64)
    planned, peak = site["planned"], site["peak"]
    assert planned["need_bytes"] == 2_156_920_832
    assert planned["margin_bytes"] == -1_743_781_888
    assert planned["margin_batch"] == -13_304
    assert planned["margin_ratio"] == -1_743_781_888 / 413_138_944
    assert planned["batch"] == 16_384
    assert planned["overflow_threshold_batch"] == 3_080
    assert planned["overrun_batches"] is None
    assert planned["recommended_workspace_bytes"] == 2_561_671_168
    assert planned["env"] == CRASH_PLAN["env"]
    assert peak["slabs"] == {"counter": 8_388_608, "softmax_stats": 404_750_336, "scratch": 0}
    assert (peak["margin_bytes"], site["last"]["margin_bytes"]) == (0, 0)


def test_health_tells_ops_and_events(attach: Attach, get: Get) -> None:
    worker = attach()
    worker.overflow()
    worker.call(20, mode="replayed", count=7)
    ((op,),) = [told["ops"] for told in get("/health").json()["workers"]]
    assert (op["op"], op["calls"]) == (DECODE, {"eager": 1, "replayed": 7})
    assert (op["overflows"], op["overruns"]) == ({"observed": 1}, {})


def test_readyz(attach: Attach, get: Get) -> None:
    assert (get("/readyz").status_code, get("/readyz").text) == (
        503,
        "not ready: workers_reporting\n",
    )
    worker = attach(contract="unverified", contract_reason="a new slab")
    worker.call(5)
    assert (get("/readyz").status_code, get("/readyz").text) == (200, "ok\n")
    worker.overflow()
    assert get("/readyz").text == "not ready: no_overflow\n"


def test_readyz_verbose(attach: Attach, get: Get) -> None:
    worker = attach(contract="unverified", contract_reason="a new slab")
    worker.overflow()
    answer = get("/readyz?verbose")
    assert (answer.status_code, answer.text.splitlines()) == (
        503,
        [
            "[+]board_readable ok",
            "[+]workers_reporting ok: 1 alive",
            "[+]workers_alive ok: 1 alive",
            "[+]planned_fits unknown: no plan is known of 1 worker",
            f"[-]no_overflow failed: engine 0 rank 0: {DECODE}: overflow observed, 1 call",
            "[+]no_overrun ok",
            "[+]contract_known warn: engine 0 rank 0: contract unverified: a new slab",
            "readyz check failed",
        ],
    )


def test_readyz_verbose_tells_of_files_passed_over(attach: Attach, get: Get, board: Board) -> None:
    attach()
    Path(board.path, "bad.slot").write_bytes(b"")
    first = get("/readyz?verbose").text.splitlines()[0]
    assert first.startswith("[+]board_readable ok: 1 file on the board passed over: it has 0 bytes")


def test_livez_does_not_care_for_the_engine(attach: Attach, get: Get) -> None:
    worker = attach()
    worker.overflow()
    worker.die()
    assert get("/readyz").status_code == 503
    assert (get("/livez").status_code, get("/livez").text) == (200, "ok\n")


def test_livez_ends_with_the_thread(
    client: Get, refresher: Refresher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(refresher), "working", False)
    assert client("GET", "/livez").status_code == 503


def test_metrics_as_text(attach: Attach, get: Get) -> None:
    attach().call(5)
    answer = get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'ws_guard_worker_up{engine="0",rank="0"} 1.0' in answer.text


def test_metrics_as_openmetrics(attach: Attach, get: Get) -> None:
    attach().call(5)
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    answer = get("/metrics", Accept=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    assert list(text_string_to_metric_families(answer.text))


TEXT = "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("text/plain;version=x", TEXT),
        ("text/plain;version=2.0.0", TEXT),
        ("application/openmetrics-text; version=abc", TEXT),
        ("application/openmetrics-text; version=9999999999999.0.0", TEXT),
        ("application/openmetrics-text; version=1.x.0", TEXT),
        ("application/openmetrics-text; version=", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text;version=x,application/openmetrics-text;version=1.0.0",
         "application/openmetrics-text; version=1.0.0"),
        (";;=,,text/plain;=;version", TEXT),
        ("*/*", TEXT),
    ],
)  # fmt: skip
def test_an_odd_accept_is_no_error(get: Get, accept: str, content_type: str) -> None:
    answer = get("/metrics", Accept=accept)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(content_type)


@pytest.mark.parametrize("path", ["/metrics/", "/readyz/", "/health/"])
def test_nothing_redirects(get: Get, path: str) -> None:
    assert get(path).status_code == 404


def test_metrics_of_an_absent_board_are_200_without_workers(get: Get) -> None:
    answer = get("/metrics")
    assert answer.status_code == 200
    assert "ws_guard_worker_up{" not in answer.text
    assert "ws_guard_ready 0.0" in answer.text


def test_metrics_of_an_unreadable_board_are_503(
    attach: Attach, get: Get, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach()
    monkeypatch.setattr("os.geteuid", lambda: 4_242)
    answer = get("/metrics")
    assert answer.status_code == 503
    assert board.path not in answer.text
    health = get("/health")
    assert health.status_code == 503
    assert health.json()["checks"][0]["state"] == "fail"
    assert get("/livez").status_code == 200


def test_a_stale_board_is_unreadable(client: Get, refresher: Refresher, clock: Clock) -> None:
    refresher.refresh()
    assert client("GET", "/metrics").status_code == 200
    clock.now += 6
    assert client("GET", "/metrics").status_code == 503
    assert client("GET", "/livez").status_code == 200


def test_workers(attach: Attach, get: Get) -> None:
    attach(rank="1")
    attach(rank="0")
    assert [told["rank"] for told in get("/api/v1/workers").json()["workers"]] == ["0", "1"]


def test_calls_come_newest_first(attach: Attach, get: Get) -> None:
    worker = attach()
    worker.call(3_080)
    worker.overflow(3_081)
    worker.call(8_192, mode="tuning", outcome=Outcome.TUNING)
    body = get("/api/v1/calls?engine=0&rank=0").json()
    assert (body["engine"], body["rank"]) == ("0", "0")
    told = [(call["batch"], call["outcome"], call["margin_bytes"]) for call in body["calls"]]
    # 131,072 bytes for each row; 8,192 is 5,112 rows more than fit.
    assert told == [
        (8_192, "tuning", -670_040_064),
        (3_081, "overflow", -131_072),
        (3_080, "eager", 0),
    ]
    assert len(get("/api/v1/calls?engine=0&rank=0&limit=2").json()["calls"]) == 2


def test_calls_of_nobody_are_404(attach: Attach, get: Get) -> None:
    attach()
    answer = get("/api/v1/calls?engine=0&rank=7")
    assert answer.status_code == 404
    assert answer.json() == {
        "detail": "no worker with engine '0' and rank '7'; see /api/v1/workers"
    }


@pytest.mark.parametrize(
    "query", ["", "engine=0", "rank=0", "engine=&rank=0", "engine=0&rank=0&limit=0"]
)
def test_a_bad_query_is_422(attach: Attach, get: Get, query: str) -> None:
    attach()
    assert get(f"/api/v1/calls?{query}").status_code == 422


def test_no_answer_tells_a_path_or_the_environment(attach: Attach, get: Get, board: Board) -> None:
    attach(problems=[f"board {board.path}/x.slot: full"], contract_reason=f"in {board.path}").die()
    for path in ROUTES:
        text = get(path).text
        assert board.path not in text, path
        assert ".slot" not in text, path


def test_hostile_names_arrive_as_they_are_and_break_nothing(attach: Attach, get: Get) -> None:
    attach(engine="<script>", rank='"\n{}', info={"model_name": "\ud800"})
    for path in ROUTES[:-1]:
        assert get(path).status_code in (200, 503), path
    assert get("/health").json()["workers"][0]["engine"] == "<script>"


def test_json_has_no_number_that_json_has_not(attach: Attach, get: Get) -> None:
    attach(planned=[CRASH_PLAN | {"margin_ratio": float("inf"), "need_bytes": 10**400}])

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    body = json.loads(get("/health").text, parse_constant=refuse)
    assert body["workers"][0]["workspaces"][0]["planned"]["need_bytes"] is None


def test_the_schema_names_every_json_route(get: Get) -> None:
    schema = get("/openapi.json").json()
    assert set(schema["paths"]) == {
        "/health",
        "/readyz",
        "/livez",
        "/metrics",
        "/api/v1/workers",
        "/api/v1/calls",
    }
    assert set(schema["components"]["schemas"]) >= {"Health", "Worker", "Workspace", "Numbers"}
    assert "securitySchemes" not in schema["components"], "nobody is asked for a password"
