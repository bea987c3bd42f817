"""From slots to numbers. Every expected value is worked out here, never taken from an answer.

64 heads with LSE, layout B: softmax stats 8 * 64 * 256 * batch + 1,048,576 behind a counter of
8,388,608 bytes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from slot_worker import CRASH_PLAN, WORKSPACE_BYTES, make_shape
from views import view

from ws_guard.board import LastCall, Outcome, Row, Shape
from ws_guard.exporter.derive import Deriver
from ws_guard.exporter.model import Numbers, Worker, Workspace

if TYPE_CHECKING:
    from conftest import Attach

    from ws_guard.exporter.model import Basis
    from ws_guard.exporter.snapshot import BoardWatch


COUNTER = 8_388_608


def the_worker(watch: BoardWatch) -> Worker:
    (observed,) = watch.read().slots
    return observed.worker


def the_site(watch: BoardWatch) -> Workspace:
    (site,) = the_worker(watch).workspaces
    return site


def on(site: Workspace, basis: Basis) -> Numbers:
    numbers = site.on(basis)
    assert numbers is not None
    return numbers


def test_a_call_that_fits_to_the_byte(attach: Attach, watch: BoardWatch) -> None:
    attach().call(3_080)
    peak = on(the_site(watch), "peak")
    # 131,072 * 3,080 + 1,048,576 = 404,750,336; with the counter exactly 413,138,944.
    assert peak.slabs == {"counter": COUNTER, "softmax_stats": 404_750_336, "scratch": 0}
    assert peak.need_bytes == WORKSPACE_BYTES
    assert (peak.margin_bytes, peak.margin_ratio, peak.margin_batch) == (0, 0.0, 0)
    assert peak.overflow_threshold_batch == 3_080
    assert peak.fits


def test_one_row_more_does_not_fit(attach: Attach, watch: BoardWatch) -> None:
    attach().call(3_081)
    peak = on(the_site(watch), "peak")
    assert peak.slabs["softmax_stats"] == 404_881_408
    assert (peak.margin_bytes, peak.margin_batch) == (-131_072, -1)
    # The base of 394 MiB and the slab: 413,138,944 + 404,881,408.
    assert peak.recommended_workspace_bytes == 818_020_352
    assert not peak.fits


def test_the_plan_of_the_reported_crash(attach: Attach, watch: BoardWatch) -> None:
    attach(planned=[CRASH_PLAN])
    site = the_site(watch)
    planned = on(site, "planned")
    assert planned.need_bytes == 2_156_920_832
    assert planned.margin_bytes == -1_743_781_888
    assert (planned.overflow_threshold_batch, planned.margin_batch) == (3_080, -13_304)
    assert planned.recommended_workspace_bytes == 2_561_671_168
    assert planned.env == {"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "2561671168"}
    assert (site.peak, site.last) == (None, None)
    assert (site.workspace_bytes, site.heads) == (WORKSPACE_BYTES, 64)


def test_the_peak_is_the_worst_by_need_not_by_batch(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    worker.call(100, lse=False)
    worker.call(50)
    # 50 rows with LSE need more than 100 without: 131,072 * 50 bytes of stats, and scratch.
    assert on(the_site(watch), "peak").batch == 50


def test_tuning_touches_neither_peak_nor_last(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    worker.call(7)
    worker.call(8_192, mode="tuning", outcome=Outcome.TUNING)
    site = the_site(watch)
    assert (on(site, "peak").batch, on(site, "last").batch) == (7, 7)
    (op,) = the_worker(watch).ops
    assert op.calls == {"eager": 1, "tuning": 1}
    assert sum(op.batch_counts) == 1


def test_only_tuning_leaves_peak_and_last_unknown(attach: Attach, watch: BoardWatch) -> None:
    attach().call(8_192, mode="tuning", outcome=Outcome.TUNING)
    worker = the_worker(watch)
    assert worker.workspaces == ()
    assert worker.peak_timestamp_seconds is None
    assert worker.last_call_timestamp_seconds is None


@pytest.mark.parametrize("mode", ["eager", "captured", "replayed"])
def test_each_mode_that_runs_makes_a_peak(attach: Attach, watch: BoardWatch, mode: str) -> None:
    attach().call(9, mode=mode)
    assert on(the_site(watch), "peak").batch == 9


def test_the_peak_was_first_seen_when_its_shape_was(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    worker.call(9, first_seen_ns=5_000_000_000)
    worker.call(8, first_seen_ns=6_000_000_000)
    assert the_worker(watch).peak_timestamp_seconds == 5.0


def test_last_is_the_newest_call_of_each_workspace(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    worker.call(5, workspace=1)
    for batch in range(1, 1_200):  # the ring holds 1,024: workspace 1 falls out of it
        worker.call(batch)
        if batch == 3:
            watch.read()
    first, second = the_worker(watch).workspaces
    assert (first.workspace, on(first, "last").batch) == ("ws0", 1_199)
    assert (second.workspace, on(second, "last").batch) == ("ws1", 5)


def test_replays_are_calls_like_others(attach: Attach, watch: BoardWatch) -> None:
    """They have a lane of their own on the board, and a shape that no eager call had."""
    worker = attach()
    worker.call(16)
    worker.call(512, mode="captured", outcome=Outcome.CAPTURED)
    before = time.time()
    worker.call(512, mode="replayed", count=1_000, outcome=Outcome.REPLAYED)
    (observed,) = watch.read().slots
    told = observed.worker
    assert told.last_call_timestamp_seconds is not None
    assert told.last_call_timestamp_seconds == pytest.approx(before, abs=60)
    (op,) = told.ops
    assert op.calls == {"eager": 1, "captured": 1, "replayed": 1_000}
    assert sum(op.batch_counts) == op.calls["eager"] + op.calls["replayed"]
    assert (on(told.workspaces[0], "last").batch, on(told.workspaces[0], "peak").batch) == (
        512,
        512,
    )
    seen = [observed.seen_call(call) for call in observed.calls]
    assert [(call.outcome, call.batch) for call in seen] == [
        ("eager", 16),
        ("captured", 512),
        ("replayed", 512),
    ]
    assert seen[-1].timestamp_seconds == told.last_call_timestamp_seconds


def test_an_unknown_layout_leaves_sizes_unknown(attach: Attach, watch: BoardWatch) -> None:
    attach(layout=None).call(3_081)
    site = the_site(watch)
    assert site.peak is None
    last = on(site, "last")
    assert (last.need_bytes, last.margin_bytes, last.overflow_threshold_batch) == (None,) * 3
    assert (last.slabs, last.batch, site.workspace_bytes) == ({}, 3_081, WORKSPACE_BYTES)


def test_an_unknown_op_is_counted_all_the_same(attach: Attach, watch: BoardWatch) -> None:
    attach(ops=["cudnn_decode"]).call(4)
    (op,) = the_worker(watch).ops
    assert (op.op, op.calls) == ("cudnn_decode", {"eager": 1})
    assert the_site(watch).peak is None


def test_xqa_is_sized_without_a_layout(attach: Attach, watch: BoardWatch) -> None:
    attach(ops=["xqa_wrapper"], layout=None).call(200)
    peak = the_site(watch).peak
    assert peak is not None
    # Above half the SMs no scratch: 8 MiB of semaphores
    assert (peak.need_bytes, peak.overflow_threshold_batch) == (8_388_608, None)


@pytest.mark.parametrize("wrong", [{"heads": 0}, {"sm_count": 0}, {"q_len": 0}, {"sm_count": 9999}])
def test_a_shape_that_no_call_has_is_not_sized(
    attach: Attach, watch: BoardWatch, wrong: dict[str, Any]
) -> None:
    attach().call(4, **wrong)
    assert on(the_site(watch), "last").need_bytes is None


def test_a_layout_told_later_sizes_what_was_seen_before(attach: Attach, watch: BoardWatch) -> None:
    worker = attach(layout=None)
    worker.call(3_080)
    assert the_site(watch).peak is None
    worker.describe(layout="C")
    # Layout C has no counter inside: 8,388,608 bytes are left.
    assert on(the_site(watch), "peak").margin_bytes == COUNTER


def test_scratch_that_does_not_fit_is_told(attach: Attach, watch: BoardWatch) -> None:
    # 12 MiB, layout C, 74 rows: stats 131,072 * 74 + 1,048,576 = 10,747,904 leave 1,835,008 bytes
    # for scratch of 9,775,104.
    attach(layout="C").call(74, workspace_bytes=12 << 20)
    site = the_site(watch)
    assert site.overrun_possible
    assert on(site, "peak").need_bytes == 10_747_904 + 9_775_104


def test_an_overflow_alone_is_no_possible_overrun(attach: Attach, watch: BoardWatch) -> None:
    attach().call(3_081)
    assert not the_site(watch).overrun_possible


def test_a_folded_row_is_no_last_call() -> None:
    shape, deriver = make_shape(1_000), Deriver()
    row = Row(shape, True, 3, 0, 0, 0, sum_eager=2_000, sum_replayed=0)
    exact = Row(make_shape(7), False, 1, 0, 0, 0, 0, 0)
    calls = [LastCall(1_024, exact.shape, 1), LastCall(2_048_000_000, shape, 1)]
    observed = deriver.observe(view([exact, row], calls))
    (site,) = observed.worker.workspaces
    assert site.last is None
    assert on(site, "peak").batch == 1_000
    assert observed.worker.last_call_timestamp_seconds == 2.048
    assert [observed.seen_call(call).folded for call in calls] == [False, True]
    newer = LastCall(4_096_000_000, exact.shape, 1)
    (site,) = deriver.observe(view([exact, row], [*calls, newer])).worker.workspaces
    assert on(site, "last").batch == 7


def test_workspaces_beyond_the_list_are_other(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    worker.call(5, workspace=8)
    worker.call(6, workspace=200)
    site = the_site(watch)
    assert (site.workspace, on(site, "peak").batch) == ("other", 6)


def test_two_sites_of_one_name_are_one_workspace(attach: Attach, watch: BoardWatch) -> None:
    worker = attach(workspaces=["same", "same"])
    worker.call(5, workspace=0)
    worker.call(6, workspace=1)
    assert (the_site(watch).workspace, on(the_site(watch), "peak").batch) == ("same", 6)


def test_a_shape_is_sized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sized: list[Shape] = []
    monkeypatch.setattr("ws_guard.exporter.derive.size_shape", lambda shape, _: sized.append(shape))
    deriver, rows = Deriver(), [Row(make_shape(n), False, 1, 0, 0, 0, 0, 0) for n in (1, 2)]
    shown = view(rows)
    for _ in range(3):
        deriver.observe(shown)
    assert [shape.batch for shape in sized] == [1, 2]


def test_an_outcome_of_a_newer_worker_is_unknown() -> None:
    call = LastCall(7_168_000_000, make_shape(3_081), 15)
    observed = Deriver().observe(view([], [call]))
    seen = observed.seen_call(call)
    assert (seen.outcome, seen.timestamp_seconds, seen.margin_bytes) == ("unknown", 7.168, -131_072)
