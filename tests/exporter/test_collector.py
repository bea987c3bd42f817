"""The metrics: names, labels, types, what is absent, what stays after a death, and how many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text
from slot_worker import CONTEXT, CRASH_PLAN, DECODE, FIXED_PLAN, busy

import ws_guard
from ws_guard.board import OVERRUN
from ws_guard.exporter.metrics import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Attach, Clock
    from prometheus_client import CollectorRegistry

    from ws_guard.exporter.refresh import Refresher

    Scrape: TypeAlias = Callable[[], "Series"]

Series: TypeAlias = dict[tuple[str, frozenset[tuple[str, str]]], float]
WORKER = {"engine": "0", "rank": "0"}
SITE = WORKER | {"workspace": "ws0"}


@pytest.fixture
def scrape(refresher: Refresher, registry: CollectorRegistry) -> Scrape:
    """All series after a fresh read of the board."""

    def read() -> Series:
        refresher.refresh()
        return series_of(generate_latest(registry).decode())

    return read


def series_of(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((PREFIX + name, frozenset(labels.items())))


def names_of_worker(series: Series) -> set[str]:
    return {name for name, labels in series if ("engine", "0") in labels}


def test_the_numbers_of_the_reported_crash(attach: Attach, scrape: Scrape) -> None:
    worker = attach(planned=[CRASH_PLAN])
    worker.call(3_081)
    worker.call(3_080)
    series = scrape()
    assert value(series, "workspace_bytes", **SITE) == 413_138_944
    for basis, need, margin, batch, margin_batch in (
        ("planned", 2_156_920_832, -1_743_781_888, 16_384, -13_304),
        # Stats of 404,881,408 behind the counter of 8,388,608.
        ("peak", 413_270_016, -131_072, 3_081, -1),
        ("last", 413_138_944, 0, 3_080, 0),
    ):
        labels = SITE | {"basis": basis}
        assert value(series, "need_bytes", **labels) == need
        assert value(series, "margin_bytes", **labels) == margin
        assert value(series, "batch", **labels) == batch
        assert value(series, "margin_batch", **labels) == margin_batch
        assert value(series, "overflow_threshold_batch", **labels) == 3_080
    slab = SITE | {"basis": "peak", "slab": "softmax_stats"}
    assert value(series, "slab_bytes", **slab) == 404_881_408


def test_counts_and_histogram(attach: Attach, scrape: Scrape) -> None:
    worker = attach()
    worker.call(3, count=5)
    worker.call(300, count=2, mode="replayed")
    worker.call(300, count=9, mode="tuning", outcome=None)
    series = scrape()
    op = WORKER | {"op": DECODE}
    assert value(series, "native_calls_total", **op, mode="eager") == 5
    assert value(series, "native_calls_total", **op, mode="replayed") == 2
    assert value(series, "native_calls_total", **op, mode="tuning") == 9
    assert value(series, "native_calls_total", **op, mode="captured") is None
    buckets = {
        bound: value(series, "batch_size_bucket", **op, le=bound)
        for bound in ("1.0", "4.0", "16.0", "64.0", "256.0", "1024.0", "4096.0", "16384.0")
    }
    assert list(buckets.values()) == [0, 5, 5, 5, 5, 7, 7, 7]
    assert value(series, "batch_size_bucket", **op, le="65536.0") == 7
    assert value(series, "batch_size_bucket", **op, le="+Inf") == 7
    assert value(series, "batch_size_count", **op) == 7
    assert value(series, "batch_size_sum", **op) == 3 * 5 + 300 * 2


def test_who_the_worker_is(attach: Attach, scrape: Scrape) -> None:
    attach(info={"model_name": 'a "b"\\\n', "tp": 8, "unheard": "of"})
    (labels,) = [dict(labels) for name, labels in scrape() if name == PREFIX + "worker_info"]
    assert labels == WORKER | {
        "model_name": 'a "b"\\?',
        "device": "",
        "engine_name": "",
        "engine_version": "",
        "flashinfer_version": "",
        "tp": "8",
        "dcp": "",
        "sizing": "",
        "on_overflow": "",
        "layout": "B",
        "contract": "verified",
    }


def test_what_is_not_known_is_absent(attach: Attach, scrape: Scrape) -> None:
    attach(layout=None).call(7, lse=False)
    series = scrape()
    last = SITE | {"basis": "last"}
    assert value(series, "batch", **last) == 7
    for name in ("need_bytes", "margin_bytes", "margin_batch", "overflow_threshold_batch"):
        assert value(series, name, **last) is None
        assert value(series, name, **SITE, basis="planned") is None
    for name in ("last_overflow", "last_overrun", "peak"):
        assert value(series, f"{name}_timestamp_seconds", **WORKER) is None


def test_nothing_limits_a_batch_without_slab(attach: Attach, scrape: Scrape) -> None:
    attach().call(7, lse=False)
    series, peak = scrape(), SITE | {"basis": "peak"}
    # The counter stands in front; a batch of any size passes the carve.
    assert value(series, "slab_bytes", **peak, slab="counter") == 8_388_608
    assert value(series, "slab_bytes", **peak, slab="softmax_stats") == 0
    assert value(series, "overflow_threshold_batch", **peak) is None
    assert value(series, "margin_batch", **peak) is None


def test_a_workspace_too_small_for_anything_has_threshold_0(attach: Attach, scrape: Scrape) -> None:
    attach().call(7, workspace_bytes=1_024)
    assert value(scrape(), "overflow_threshold_batch", **SITE, basis="peak") == 0


def test_a_dead_worker_keeps_what_was_and_loses_what_is(
    attach: Attach, scrape: Scrape, clock: Clock
) -> None:
    worker = busy(attach)
    alive = scrape()
    assert value(alive, "worker_up", **WORKER) == 1
    worker.die()
    dead = scrape()
    assert value(dead, "worker_up", **WORKER) == 0
    kept = {
        "overflows_total",
        "overruns_total",
        "native_calls_total",
        "probe_errors_total",
        "last_overflow_timestamp_seconds",
        "last_overrun_timestamp_seconds",
        "peak_timestamp_seconds",
        "worker_start_timestamp_seconds",
        "worker_last_call_timestamp_seconds",
        "worker_up",
        "worker_info",
    }
    assert names_of_worker(dead) == {PREFIX + name for name in kept}
    for key in dead:
        if key[0].endswith(("_total", "_timestamp_seconds")) and ("engine", "0") in key[1]:
            assert dead[key] == alive[key]
    clock.now += 900
    assert names_of_worker(scrape()) == {PREFIX + name for name in kept}
    clock.now += 1
    assert names_of_worker(scrape()) == set()


def test_a_worker_that_takes_over_has_series_of_its_own(attach: Attach, scrape: Scrape) -> None:
    old = attach()
    old.overflow()
    old.die()
    attach().call(4)
    series = scrape()
    assert value(series, "worker_up", **WORKER) == 1
    assert value(series, "overflows_total", **WORKER, op=DECODE, action="observed") is None
    assert value(series, "batch", **SITE, basis="peak") == 4


def test_a_clean_end_leaves_nothing(attach: Attach, scrape: Scrape) -> None:
    worker = busy(attach)
    assert names_of_worker(scrape())
    worker.close()
    assert names_of_worker(scrape()) == set()


def test_identity_conflicts_are_counted(attach: Attach, scrape: Scrape) -> None:
    attach().call(4)
    attach().call(5)
    series = scrape()
    assert value(series, "identity_conflicts") == 1
    assert value(series, "batch", **SITE, basis="peak") == 5


def test_the_exporter_about_itself(attach: Attach, scrape: Scrape) -> None:
    worker = attach(planned=[FIXED_PLAN])
    series = scrape()
    assert value(series, "ready") == 1
    states = {
        state: value(series, "check", check="no_overflow", state=state)
        for state in ("ok", "warn", "fail", "unknown")
    }
    assert states == {"ok": 1, "warn": 0, "fail": 0, "unknown": 0}
    assert value(series, "board_read_errors_total") == 0
    assert value(series, "scrape_duration_seconds") == 0  # by the clock that stands still
    (build,) = [dict(labels) for name, labels in series if name == PREFIX + "build_info"]
    assert build["version"] == ws_guard.__version__
    worker.overflow()
    series = scrape()
    assert value(series, "ready") == 0
    assert value(series, "check", check="no_overflow", state="fail") == 1
    assert value(series, "check", check="no_overflow", state="ok") == 0


def test_every_check_is_in_one_state(attach: Attach, scrape: Scrape) -> None:
    attach()
    states: Counter[str] = Counter()
    for (name, labels), number in scrape().items():
        if name == PREFIX + "check":
            states[dict(labels)["check"]] += int(number)
    assert len(states) == 7
    assert set(states.values()) == {1}


def test_at_most_a_hundred_series_per_rank(attach: Attach, scrape: Scrape) -> None:
    busy(attach)
    series = [key for key in scrape() if ("engine", "0") in key[1]]
    # 2 sizes; 2 workspaces x 3 bases x (5 gauges + 3 slabs) = 48; 2 histograms of 12; 2 x 4 modes;
    # 2 ops x 2 actions x (overflows, overruns); 3 timestamps; up, start, last call, errors; info.
    assert len(series) == 2 + 48 + 24 + 8 + 8 + 3 + 4 + 1
    assert len(series) <= 100


def test_two_ops_do_not_mix(attach: Attach, scrape: Scrape) -> None:
    worker = attach()
    worker.call(3)
    worker.call(5, op=1)
    worker.event(OVERRUN, "raised", 1)
    series = scrape()
    assert value(series, "batch_size_sum", **WORKER, op=DECODE) == 3
    assert value(series, "batch_size_sum", **WORKER, op=CONTEXT) == 5
    assert value(series, "overruns_total", **WORKER, op=CONTEXT, action="raised") == 1
    assert value(series, "overruns_total", **WORKER, op=DECODE, action="raised") is None
