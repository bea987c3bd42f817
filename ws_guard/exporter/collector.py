"""The board as Prometheus metrics."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from ws_guard.settings import Settings
from ws_guard.version import __version__

from .checks import examine
from .metrics import METRICS, PREFIX, Metric
from .model import BATCH_BUCKETS, STATES, OpCounts, Worker, Workspace
from .snapshot import Snapshot

Family: TypeAlias = (
    GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily | InfoMetricFamily
)
#: The names of series, which are those of the table: a family's own may lack a suffix.
_SERIES = {metric.name: PREFIX + metric.name for metric in METRICS}
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
        sheet.add("ready", {}, int(health.ready))
        for check in health.checks:
            for state in STATES:
                sheet.add("check", {"check": check.name, "state": state}, check.state == state)
        sheet.add("identity_conflicts", {}, snapshot.roster.conflicts)
        sheet.add("board_read_errors_total", {}, snapshot.read_errors)
        sheet.add("scrape_duration_seconds", {}, snapshot.read_seconds)
        build = {"version": __version__, "python": platform.python_version()}
        sheet.add("build_info", build, 1)


def board_registry(latest: Callable[[], Snapshot], settings: Settings) -> CollectorRegistry:
    """A registry with the board in it, and nothing of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BoardCollector(latest, settings))
    return registry


class Sheet:
    """The metric families of one scrape, filled by name.

    Samples may share their labels: many thousands are written at each scrape.
    """

    def __init__(self) -> None:
        self.families: dict[str, Family] = {metric.name: _family(metric) for metric in METRICS}

    def add(self, name: str, labels: dict[str, str], value: float | None) -> None:
        """A sample of the metric of that name; none where the value is not known."""
        if value is not None:
            self.families[name].samples.append(Sample(_SERIES[name], labels, value))

    def add_histogram(self, name: str, labels: dict[str, str], counts: OpCounts) -> None:
        """The buckets of an op, which are cumulative in an exposition."""
        samples, series = self.families[name].samples, _SERIES[name]
        total = 0
        for bound, count in zip(_LE, counts.batch_counts, strict=True):
            total += count
            samples.append(Sample(f"{series}_bucket", {**labels, "le": bound}, total))
        samples.append(Sample(f"{series}_count", labels, total))
        samples.append(Sample(f"{series}_sum", labels, counts.batch_sum))


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
    who = {"engine": worker.engine, "rank": worker.rank}
    # A dead worker needs no workspace. What it did and who it was stays to be scraped.
    if worker.alive:
        for site in worker.workspaces:
            _add_workspace(sheet, who | {"workspace": site.workspace}, site)
    for op in worker.ops:
        _add_op(sheet, who | {"op": op.op}, op, worker.alive)
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
    sheet.add("worker_info", who | worker.info | extra, 1)


def _add_workspace(sheet: Sheet, where: dict[str, str], site: Workspace) -> None:
    sheet.add("workspace_bytes", where, site.workspace_bytes)
    for basis, numbers in site.known:
        labels = where | {"basis": basis}
        sheet.add("need_bytes", labels, numbers.need_bytes)
        sheet.add("margin_bytes", labels, numbers.margin_bytes)
        sheet.add("margin_batch", labels, numbers.margin_batch)
        sheet.add("batch", labels, numbers.batch)
        sheet.add("overflow_threshold_batch", labels, numbers.overflow_threshold_batch)
        for slab, size in numbers.slabs.items():
            sheet.add("slab_bytes", labels | {"slab": slab}, size)


def _add_op(sheet: Sheet, labels: dict[str, str], op: OpCounts, alive: bool) -> None:
    if alive and any(op.batch_counts):
        sheet.add_histogram("batch_size", labels, op)
    for mode, count in op.calls.items():
        sheet.add("native_calls_total", labels | {"mode": mode}, count)
    for action, count in op.overflows.items():
        sheet.add("overflows_total", labels | {"action": action}, count)
    for action, count in op.overruns.items():
        sheet.add("overruns_total", labels | {"action": action}, count)
