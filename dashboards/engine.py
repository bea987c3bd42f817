"""`Workspace margin: engine`: every rank and workspace of an engine."""

from __future__ import annotations

from .panels import (
    FAULT_STEPS,
    MARGIN_STEPS,
    PLAN_STEPS,
    UP_STEPS,
    Json,
    dashboard,
    lines,
    panel,
    query,
    rows,
    stat,
    table,
    variable,
)

_WORKER = 'job=~"$job", instance=~"$instance", engine=~"$engine", rank=~"$rank"'
_SITE = f'{_WORKER}, workspace=~"$workspace"'
_RANK = "{{engine}}/{{rank}}"
_RATE = "[$__rate_interval]"


def engine() -> Json:
    """The dashboard."""
    worker, here = "ws_guard_worker_info", 'job=~"$job", instance=~"$instance"'
    return dashboard(
        "ws-guard-engine",
        "Workspace margin: engine",
        "Need against size of every FlashInfer workspace, rank by rank, and what was called.",
        [
            variable("job", "Job", "label_values(ws_guard_build_info, job)"),
            variable("instance", "Exporter", f'label_values({worker}{{job=~"$job"}}, instance)'),
            variable("engine", "Engine", f"label_values({worker}{{{here}}}, engine)"),
            variable("rank", "Rank", f'label_values({worker}{{{here}, engine=~"$engine"}}, rank)'),
            variable(
                "workspace",
                "Workspace",
                f"label_values(ws_guard_workspace_bytes{{{_WORKER}}}, workspace)",
            ),
        ],
        [
            (4, _numbers()),
            (10, [_need(), _batch()]),
            (8, [_margin(), _slabs()]),
            (9, [_heatmap(), _calls()]),
            (8, [_faults("overflows"), _faults("overruns")]),
            (9, [_last_call(), _workers()]),
            (7, [_errors(), _board(), _reads()]),
        ],
    )


def _numbers() -> list[Json]:
    def margin(basis: str) -> str:
        return f'min(ws_guard:margin_ratio{{{_SITE}, basis="{basis}"}})'

    return [
        stat(
            "Workers up",
            "Part of the workers on the board that live.",
            f"avg(ws_guard_worker_up{{{_WORKER}}})",
            unit="percentunit",
            no_value="no worker",
            steps=UP_STEPS,
        ),
        stat(
            "Planned margin",
            "What the worst planned step leaves of its workspace; below 0 it does not fit.",
            margin("planned"),
            unit="percentunit",
            no_value="no plan",
            steps=PLAN_STEPS,
        ),
        stat(
            "Peak margin",
            "What the worst call seen left of its workspace.",
            margin("peak"),
            unit="percentunit",
            no_value="no call",
            steps=MARGIN_STEPS,
        ),
        stat(
            "Overflow threshold",
            "The largest batch that the launcher accepts, on the tightest rank.",
            f"min(ws_guard_overflow_threshold_batch{{{_SITE}}})",
            unit="short",
            no_value="none: nothing limits the batch",
        ),
        stat(
            "Overflows",
            "Calls that the launcher refused since the workers attached.",
            f"sum(ws_guard_overflows_total{{{_WORKER}}}) or vector(0)",
            unit="short",
            steps=FAULT_STEPS,
        ),
        stat(
            "Overruns",
            "Calls whose scratch did not fit since the workers attached: silent corruption.",
            f"sum(ws_guard_overruns_total{{{_WORKER}}}) or vector(0)",
            unit="short",
            steps=FAULT_STEPS,
        ),
    ]


def _need() -> Json:
    return lines(
        "Need against size",
        "Bytes that the worst planned step, the worst call seen and the last call need. The dashed "
        "line is the size of the workspace: what reaches above it overflows or overruns.",
        [
            query(
                f"max by (engine, rank, workspace, basis) (ws_guard_need_bytes{{{_SITE}}})",
                f"{_RANK} {{{{workspace}}}} {{{{basis}}}}",
            ),
            query(
                f"min by (workspace) (ws_guard_workspace_bytes{{{_SITE}}})",
                "{{workspace}} size",
            ),
        ],
        limits=["/ size$/"],
        unit="bytes",
        no_value="no workspace",
    )


def _batch() -> Json:
    return lines(
        "Batch against threshold",
        "Rows of the worst planned step, of the worst call and of the last. The dashed line is the "
        "overflow threshold: the largest batch that the launcher accepts.",
        [
            query(
                f"max by (engine, rank, workspace, basis) (ws_guard_batch{{{_SITE}}})",
                f"{_RANK} {{{{workspace}}}} {{{{basis}}}}",
            ),
            query(
                f"min by (workspace) (ws_guard_overflow_threshold_batch{{{_SITE}}})",
                "{{workspace}} threshold",
            ),
        ],
        limits=["/ threshold$/"],
        unit="short",
        no_value="no workspace",
        custom={"scaleDistribution": {"type": "log", "log": 2}},
    )


def _margin() -> Json:
    return lines(
        "Margin ratio by rank",
        "The least margin of each rank on each basis, as a part of its workspace; the dashed line "
        "is its end.",
        [
            query(
                f"min by (engine, rank, basis) (ws_guard:margin_ratio{{{_SITE}}})",
                f"{_RANK} {{{{basis}}}}",
            ),
            query("vector(0)", "end of the workspace"),
        ],
        limits=["end of the workspace"],
        unit="percentunit",
        no_value="no workspace",
    )


def _slabs() -> Json:
    return lines(
        "Slabs of the worst call",
        "What the worst call seen is made of, on the rank with the largest: the split-KV counters, "
        "the softmax statistics (LSE), the scratch of the reduction.",
        [
            query(
                f'max by (workspace, slab) (ws_guard_slab_bytes{{{_SITE}, basis="peak"}})',
                "{{workspace}} {{slab}}",
            )
        ],
        unit="bytes",
        no_value="no call",
        custom={"fillOpacity": 40, "stacking": {"mode": "normal", "group": "A"}},
    )


def _heatmap() -> Json:
    return panel(
        "heatmap",
        "Batch sizes",
        "How many native calls were made with how many rows: eager calls and graph replays.",
        [
            query(
                f"sum by (le) (increase(ws_guard_batch_size_bucket{{{_WORKER}}}{_RATE}))",
                "{{le}}",
                kind="heatmap",
            )
        ],
        unit="short",
        no_value="no call",
        options={
            "calculate": False,
            "yAxis": {"unit": "short", "axisPlacement": "left"},
            "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
            "cellGap": 1,
            "filterValues": {"le": 1e-9},
            "tooltip": {"mode": "single", "yHistogram": False},
            "legend": {"show": True},
        },
    )


def _calls() -> Json:
    return lines(
        "Native calls by mode",
        "Calls per second: eager, captured into a CUDA graph, replayed by one, or made by "
        "FlashInfer's autotuner. An engine that serves from graphs is nearly all `replayed`.",
        [
            query(
                f"sum by (mode) (rate(ws_guard_native_calls_total{{{_WORKER}}}{_RATE}))",
                "{{mode}}",
            )
        ],
        unit="cps",
        no_value="no call",
        custom={"fillOpacity": 30, "stacking": {"mode": "normal", "group": "A"}},
    )


def _faults(what: str) -> Json:
    told = {
        "overflows": "Calls that the launcher refuses, by what was done: `observed` kills the "
        "engine unless somebody catches it, `raised` was answered with an error of ours, `split` "
        "was made to fit.",
        "overruns": "Calls whose carve succeeds but whose scratch does not fit, by what was done: "
        "`observed` overwrote memory, `raised` and `split` did not.",
    }
    return lines(
        what.capitalize(),
        told[what] + " Counted since the worker attached.",
        [
            query(
                f"sum by (engine, rank, op, action) (ws_guard_{what}_total{{{_WORKER}}})",
                f"{_RANK} {{{{op}}}} {{{{action}}}}",
            )
        ],
        unit="short",
        no_value="none",
    )


def _last_call() -> Json:
    stamp = {"last call": "worker_last_call", "peak": "peak", "attached": "worker_start"}
    stamp |= {"last overflow": "last_overflow", "last overrun": "last_overrun"}
    by = ("instance", "engine", "rank")

    def age(name: str) -> str:
        series = f"ws_guard_{name}_timestamp_seconds{{{_WORKER}}}"
        return f"max by ({', '.join(by)}) (time() - {series})"

    return table(
        "How long ago",
        "Seconds since a rank last made a native call, met its peak, overflowed or overran, and "
        "since it attached. Graph replays are calls like others.",
        {column: rows(age(name)) for column, name in stamp.items()},
        by=by,
        unit="dtdurations",
        no_value="never",
    )


def _workers() -> Json:
    by = ["engine", "rank", "device", "model_name", "engine_name", "engine_version"]
    by += ["flashinfer_version", "layout", "contract", "tp", "dcp", "sizing", "on_overflow"]
    return table(
        "Workers",
        "What each worker runs, and how its launcher is understood.",
        {"workers": rows(f"count by ({', '.join(by)}) (ws_guard_worker_info{{{_WORKER}}})")},
        by=by,
        unit="short",
        no_value="no worker",
    )


def _errors() -> Json:
    return lines(
        "Probe errors",
        "Exceptions inside the probe; the native calls went ahead.",
        [query(f"sum by (engine, rank) (ws_guard_probe_errors_total{{{_WORKER}}})", _RANK)],
        unit="short",
        no_value="no worker",
    )


def _board() -> Json:
    where = 'job=~"$job", instance=~"$instance"'
    return lines(
        "Board",
        "Files on the board that are no readable slot, and live workers hidden by a newer one "
        "that claims the same engine and rank.",
        [
            query(f"sum(ws_guard_board_read_errors_total{{{where}}})", "read errors"),
            query(f"sum(ws_guard_identity_conflicts{{{where}}})", "identity conflicts"),
        ],
        unit="short",
    )


def _reads() -> Json:
    where = 'job=~"$job", instance=~"$instance"'
    return lines(
        "Time to read the board",
        "How long the exporter took to read the board behind its last answer.",
        [query(f"max by (instance) (ws_guard_scrape_duration_seconds{{{where}}})", "{{instance}}")],
        unit="s",
    )
