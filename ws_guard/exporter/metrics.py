"""Every metric that the exporter offers, as data: the collector and docs/METRICS.md follow it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .document import INFO_KEYS

Kind = Literal["gauge", "counter", "histogram", "info"]

PREFIX = "ws_guard_"
_WORKER = ("engine", "rank")
_SITE = (*_WORKER, "workspace")
_BASIS = (*_SITE, "basis")
_OP = (*_WORKER, "op")


class Metric(NamedTuple):
    """One metric. `name` is without the prefix, but with the suffix that its series carry."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


METRICS: tuple[Metric, ...] = (
    Metric("workspace_bytes", "gauge", _SITE, "Size of the workspace."),
    Metric(
        "need_bytes", "gauge", _BASIS,
        "Bytes that the call needs in the workspace: carved slabs and scratch really written.",
    ),
    Metric(
        "margin_bytes", "gauge", _BASIS,
        "Workspace size less need; below 0 the call overflows or overruns.",
    ),
    Metric(
        "margin_batch", "gauge", _BASIS,
        "Rows between the batch and the overflow threshold; absent where nothing limits the batch.",
    ),
    Metric("batch", "gauge", _BASIS, "Rows of the call (the native batch_size)."),
    Metric(
        "overflow_threshold_batch", "gauge", _BASIS,
        "Largest batch whose carve the launcher accepts, other arguments equal; absent where "
        "nothing limits it, 0 where batch 1 is refused.",
    ),
    Metric("slab_bytes", "gauge", (*_BASIS, "slab"), "Size of one slab of the call."),
    Metric(
        "batch_size", "histogram", _OP,
        "Rows of native calls, eager and replayed, since the worker attached.",
    ),
    Metric(
        "native_calls_total", "counter", (*_OP, "mode"),
        "Native calls by mode: eager, captured into a CUDA graph, replayed by one, or tuning.",
    ),
    Metric(
        "overflows_total", "counter", (*_OP, "action"),
        "Calls whose carve the launcher refuses, by what was done: observed, raised or split.",
    ),
    Metric(
        "overruns_total", "counter", (*_OP, "action"),
        "Calls whose carve succeeds but whose scratch does not fit (silent corruption), by what "
        "was done: observed, raised or split.",
    ),
    Metric(
        "last_overflow_timestamp_seconds", "gauge", _WORKER, "When the last overflow happened.",
    ),
    Metric("last_overrun_timestamp_seconds", "gauge", _WORKER, "When the last overrun happened."),
    Metric(
        "peak_timestamp_seconds", "gauge", _WORKER,
        "When the newest peak of any workspace was first seen.",
    ),
    Metric("worker_up", "gauge", _WORKER, "1 while the worker lives, 0 after it died."),
    Metric(
        "worker_start_timestamp_seconds", "gauge", _WORKER, "When the worker attached.",
    ),
    Metric(
        "worker_last_call_timestamp_seconds", "gauge", _WORKER,
        "When the worker last made or replayed a native call outside tuning.",
    ),
    Metric(
        "probe_errors_total", "counter", _WORKER,
        "Exceptions inside the probe; the native calls went ahead.",
    ),
    Metric(
        "worker_info", "info", (*_WORKER, *INFO_KEYS, "layout", "contract"),
        "What the worker runs, and how its launcher is understood.",
    ),
    Metric("ready", "gauge", (), "1 when no check fails: what /readyz answers."),
    Metric("check", "gauge", ("check", "state"), "1 for the state that a check is in."),
    Metric(
        "identity_conflicts", "gauge", (),
        "Live workers hidden by a newer one that claims the same engine and rank.",
    ),
    Metric(
        "board_read_errors_total", "counter", (),
        "Files on the board that are no readable slot, each once, and failed reads of the board.",
    ),
    Metric(
        "scrape_duration_seconds", "gauge", (), "How long the board read behind this answer took.",
    ),
    Metric("build_info", "info", ("version", "python"), "Version of the exporter."),
)  # fmt: skip


def markdown() -> str:
    """The table of docs/METRICS.md."""
    rows = [
        f"| `{PREFIX}{metric.name}` | {metric.kind} | "
        f"{', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in METRICS
    ]
    return "\n".join(["| metric | type | labels | what |", "|---|---|---|---|", *rows])
