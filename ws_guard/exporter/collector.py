"""The board as Prometheus metrics."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from ws_guard.settings import Settings
from ws_guard.version import __version__

from .checks import examine
from .metrics import METRICS, PREFIX, Metric
from .model import BATCH_BUCKETS, STATES, OpCounts, Worker, Workspace
from .snapshot import Snapshot

Family: TypeAlias = (
    GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily | InfoMetricFamily
)
_LE = [*(str(float(bound)) for bound in BATCH_BUCKETS), "+Inf"]


class BoardCollector(Collector):
    """Turns the latest snapshot into metric families at each scrape."""

    def __init__(self, latest: Callable[[], Snapshot], settings: Settings) -> None:
        self._latest = latest
        self._settings = settings

    def collect(self) -> Iterable[Family]:
        """All metrics of the table; a family without samples says that it exists."""
        snapshot = self._latest()
        sheet = Sheet()
        for one in snapshot.roster.exported:
            if one.slot not in snapshot.forgotten:
                _add_worker(sheet, one.worker)
        self._add_exporter(sheet, snapshot)
        return sheet.families.values()

    def _add_exporter(self, sheet: Sheet, snapshot: Snapshot) -> None:
        health = examine(snapshot, self._settings)
        sheet.add("ready", (), int(health.ready))
        for check in health.checks:
            for state in STATES:
                sheet.add("check", (check.name, state), int(check.state == state))
        sheet.add("identity_conflicts", (), snapshot.roster.conflicts)
        sheet.add("board_read_errors_total", (), snapshot.read_errors)
        sheet.add("scrape_duration_seconds", (), snapshot.read_seconds)
        build = {"version": __version__, "python": platform.python_version()}
        sheet.add_info("build_info", (), build)


def board_registry(latest: Callable[[], Snapshot], settings: Settings) -> CollectorRegistry:
    """A registry with the board in it, and nothing of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BoardCollector(latest, settings))
    return registry


class Sheet:
    """The metric families of one scrape, filled by name."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {metric.name: _family(metric) for metric in METRICS}

    def add(self, name: str, labels: Iterable[str], value: float | None) -> None:
        """A sample; none where the value is not known."""
        family = self.families[name]
        assert isinstance(family, (GaugeMetricFamily, CounterMetricFamily))  # noqa: S101
        if value is not None:
            family.add_metric(list(labels), value)

    def add_info(self, name: str, labels: Iterable[str], info: Mapping[str, str]) -> None:
        """A sample whose labels are the news."""
        family = self.families[name]
        assert isinstance(family, InfoMetricFamily)  # noqa: S101
        family.add_metric(list(labels), dict(info))

    def add_histogram(self, name: str, labels: Iterable[str], counts: OpCounts) -> None:
        """The buckets of an op, which are cumulative in an exposition."""
        family = self.families[name]
        assert isinstance(family, HistogramMetricFamily)  # noqa: S101
        buckets = list(zip(_LE, accumulate(counts.batch_counts), strict=True))
        family.add_metric(list(labels), buckets, counts.batch_sum)


def _family(metric: Metric) -> Family:
    name, text = PREFIX + metric.name, metric.help
    if metric.kind == "gauge":
        return GaugeMetricFamily(name, text, labels=metric.labels)
    if metric.kind == "counter":
        return CounterMetricFamily(name, text, labels=metric.labels)
    if metric.kind == "histogram":
        return HistogramMetricFamily(name, text, labels=metric.labels)
    # An info family's labels are those that tell its series apart, not the news.
    own = [label for label in metric.labels if label in ("engine", "rank")]
    return InfoMetricFamily(name.removesuffix("_info"), text, labels=own)


def _add_worker(sheet: Sheet, worker: Worker) -> None:
    who = worker.identity
    # A dead worker needs no workspace. What it did and who it was stays to be scraped.
    if worker.alive:
        for site in worker.workspaces:
            _add_workspace(sheet, who, site)
    for op in worker.ops:
        _add_op(sheet, who, op, worker.alive)
    for name, value in (
        ("last_overflow_timestamp_seconds", worker.last_overflow_timestamp_seconds),
        ("last_overrun_timestamp_seconds", worker.last_overrun_timestamp_seconds),
        ("peak_timestamp_seconds", worker.peak_timestamp_seconds),
        ("worker_up", int(worker.alive)),
        ("worker_start_timestamp_seconds", worker.start_timestamp_seconds),
        ("worker_last_call_timestamp_seconds", worker.last_call_timestamp_seconds),
        ("probe_errors_total", worker.probe_errors),
    ):
        sheet.add(name, who, value)
    extra = {"layout": worker.layout or "", "contract": worker.contract}
    sheet.add_info("worker_info", who, worker.info | extra)


def _add_workspace(sheet: Sheet, who: tuple[str, str], site: Workspace) -> None:
    sheet.add("workspace_bytes", (*who, site.workspace), site.workspace_bytes)
    for basis, numbers in site.known:
        labels = (*who, site.workspace, basis)
        sheet.add("need_bytes", labels, numbers.need_bytes)
        sheet.add("margin_bytes", labels, numbers.margin_bytes)
        sheet.add("margin_batch", labels, numbers.margin_batch)
        sheet.add("batch", labels, numbers.batch)
        sheet.add("overflow_threshold_batch", labels, numbers.overflow_threshold_batch)
        for slab, size in numbers.slabs.items():
            sheet.add("slab_bytes", (*labels, slab), size)


def _add_op(sheet: Sheet, who: tuple[str, str], op: OpCounts, alive: bool) -> None:
    labels = (*who, op.op)
    if alive and any(op.batch_counts):
        sheet.add_histogram("batch_size", labels, op)
    for mode, count in op.calls.items():
        sheet.add("native_calls_total", (*labels, mode), count)
    for action, count in op.overflows.items():
        sheet.add("overflows_total", (*labels, action), count)
    for action, count in op.overruns.items():
        sheet.add("overruns_total", (*labels, action), count)
