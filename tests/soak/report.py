"""What came of a soak, as figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Report:
    """What came of it."""

    seed: int
    seconds: float
    workers: int
    calls_per_second_asked: float
    calls_eager: int = 0
    calls_replayed: int = 0
    calls_captured: int = 0
    calls_tuning: int = 0
    calls_per_second: float = 0.0
    calls_told_by_prometheus: float = 0.0
    overflows: dict[str, int] = field(default_factory=dict)
    lives: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    calls_in_doubt: int = 0
    most_in_doubt: int = 0
    lives_in_doubt: int = 0
    slowest_to_tell_s: float = 0.0
    worst_delay_ms: int = 0
    scrapes_failed: int = 0
    scrapes: dict[str, float] = field(default_factory=dict)
    instants_checked: int = 0
    histograms_checked: int = 0
    events_told: dict[str, int] = field(default_factory=dict)
    exporter_mb_settled: float = 0.0
    exporter_mb_end: float = 0.0
    exporter_descriptors: list[int] = field(default_factory=list)
    exporter_cpu_percent: float = 0.0
    prometheus_mb_end: float = 0.0
    workers_mb: dict[str, list[float]] = field(default_factory=dict)
    workers_descriptors: dict[str, list[int]] = field(default_factory=dict)
    load_average: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def table(report: Report) -> str:
    """The figures, a line each."""
    lines = []
    for name, value in asdict(report).items():
        if name == "problems":
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_number(each)}" for key, each in value.items())
        lines.append(f"{name.replace('_', ' '):<28}{_number(value)}")
    verdict = f"{len(report.problems)} PROBLEMS" if report.problems else "all counts are equal"
    return "\n".join([*lines, "", verdict, *report.problems[:50]])


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
