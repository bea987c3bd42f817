"""Alerts of a real Prometheus, as a real Alertmanager passed them on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from play import DEMO, DOWN, FIRING, KILLED, RESOLVED, SIZED

if TYPE_CHECKING:
    from play import Played

pytestmark = [pytest.mark.observability, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("name", "job"), FIRING)
def test_it_fires_for_the_undersized_run(played: Played, name: str, job: str) -> None:
    assert played.receiver.heard("firing", name, job)


@pytest.mark.parametrize(("name", "job"), RESOLVED)
def test_it_resolves_for_the_sized_run(played: Played, name: str, job: str) -> None:
    assert played.receiver.heard("resolved", name, job)
    firing = f'ALERTS{{alertname="{name}", job="{job}"}}'
    assert played.prometheus.query(firing, played.undersized)
    assert not played.prometheus.query(firing, played.ended)


def test_a_counter_would_not_have_told_of_the_killed_worker(played: Played) -> None:
    """Its first overflow was its last: there is no increase, only the timestamp that it left."""
    rises = f'increase(ws_guard_overflows_total{{job="{KILLED}"}}[5m]) > 0'
    assert played.prometheus.query(rises, played.undersized) == []
    dead = f'ws_guard_worker_up{{job="{KILLED}"}}'
    assert [one["value"][1] for one in played.prometheus.query(dead, played.undersized)] == ["0"]


def test_a_correctly_sized_deployment_fires_nothing(played: Played) -> None:
    margin = f'{{__name__=~"ws_guard_margin_bytes|ws_guard:margin_ratio", job="{SIZED}"'
    at = played.ended
    planned = {
        one["metric"]["__name__"]: float(one["value"][1])
        for one in played.prometheus.query(margin + ', basis="planned"}', at)
    }
    # 394 MiB of 394 MiB + 8 * 128 * 32,768 * 256 + 1 MiB.
    size = 413_138_944 + 8_590_983_168
    assert planned["ws_guard_margin_bytes"] == 413_138_944
    assert planned["ws_guard:margin_ratio"] == pytest.approx(413_138_944 / size)
    peak = played.prometheus.query(margin + ', basis="peak"}', at)
    assert {float(one["value"][1]) for one in peak} == set(planned.values())
    assert SIZED not in {alert.job for alert in played.receiver.told}


def test_nothing_else_was_said_of_the_runs_that_were_mended(played: Played) -> None:
    said = {alert.name for alert in played.receiver.told if alert.job in (DEMO, KILLED)}
    expected = {name for name, job in FIRING if job in (DEMO, KILLED)}
    # Ranks whose planned margin is below 0 have a low one at their peak, too.
    assert said == expected | {"WsGuardMarginLow"}
    left = played.prometheus.query(f'ALERTS{{job=~"{DEMO}|{KILLED}"}}', played.ended)
    assert left == []


def test_an_exporter_that_went_away_is_missed(played: Played) -> None:
    assert played.receiver.heard("firing", "WsGuardExporterDown", DOWN)
