"""`Workspace margin: fleet`: which deployments and ranks are closest to the edge."""

from __future__ import annotations

from .panels import (
    FAULT_STEPS,
    MARGIN_STEPS,
    PLAN_STEPS,
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

_JOB = 'job=~"$job"'
_WHERE = ("namespace", "job", "pod", "instance")


def fleet() -> Json:
    """The dashboard."""
    return dashboard(
        "ws-guard-fleet",
        "Workspace margin: fleet",
        "Which deployments and ranks are closest to overflowing their FlashInfer workspace.",
        [variable("job", "Job", "label_values(ws_guard_build_info, job)")],
        [
            (4, _numbers()),
            (9, [_deployments(), _ranks()]),
            (8, [_margin("planned"), _margin("peak")]),
            (8, [_planned_against_peak(), _events()]),
            (9, [_not_ready(), _contracts()]),
            (8, [_alerts()]),
        ],
        links=[
            {
                "type": "dashboards",
                "title": "Workspace margin: engine",
                "tags": ["ws_guard"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
                "icon": "external link",
                "targetBlank": False,
                "tooltip": "",
                "url": "",
            }
        ],
    )


def _numbers() -> list[Json]:
    return [
        stat(
            "Least planned margin",
            "The smallest margin of any planned step, as a part of its workspace. Below 0 a step "
            "that the configuration allows does not fit: WsGuardPlannedOverflow.",
            f'min(fleet:ws_guard_margin_ratio:min{{{_JOB}, basis="planned"}})',
            unit="percentunit",
            no_value="no plan",
            steps=PLAN_STEPS,
        ),
        stat(
            "Least peak margin",
            "What the worst call seen left of its workspace. Small is fine where the planned "
            "margin is positive: a sized workspace is meant to be used.",
            f'min(fleet:ws_guard_margin_ratio:min{{{_JOB}, basis="peak"}})',
            unit="percentunit",
            no_value="no call",
            steps=MARGIN_STEPS,
        ),
        stat(
            "Exporters not ready",
            "Exporters whose /readyz answers 503; the table below says why.",
            f"count(ws_guard_ready{{{_JOB}}} == 0) or vector(0)",
            unit="short",
            steps=FAULT_STEPS,
        ),
        stat(
            "Dead workers",
            "Workers that died without a goodbye, and that no other has replaced.",
            f"count(ws_guard_worker_up{{{_JOB}}} == 0) or vector(0)",
            unit="short",
            steps=FAULT_STEPS,
        ),
        stat(
            "Ranks with an overflow, 15 min",
            "Ranks on which the launcher refused a call in the last 15 minutes.",
            f"count(time() - ws_guard_last_overflow_timestamp_seconds{{{_JOB}}} < 900) "
            "or vector(0)",
            unit="short",
            steps=FAULT_STEPS,
        ),
        stat(
            "Ranks with an overrun, 15 min",
            "Ranks on which scratch did not fit in the last 15 minutes: silent corruption.",
            f"count(time() - ws_guard_last_overrun_timestamp_seconds{{{_JOB}}} < 900) or vector(0)",
            unit="short",
            steps=FAULT_STEPS,
        ),
    ]


def _deployments() -> Json:
    margin = f"fleet:ws_guard_margin_ratio:min{{{_JOB}"
    return table(
        "Deployments closest to the edge",
        "The least margin of each deployment: of the worst planned step, of the worst call seen, "
        "and in rows between the planned batch and the overflow threshold.",
        {
            "planned margin": rows(f'sort(sum by (namespace, job) ({margin}, basis="planned"}}))'),
            "peak margin": rows(f'sum by (namespace, job) ({margin}, basis="peak"}})'),
            "planned margin, rows": rows(
                "sum by (namespace, job) "
                f'(fleet:ws_guard_margin_batch:min{{{_JOB}, basis="planned"}})'
            ),
        },
        by=("namespace", "job"),
        units={"planned margin, rows": "short"},
        unit="percentunit",
        no_value="?",
        steps=PLAN_STEPS,
        defaults={"custom": {"cellOptions": {"type": "color-text"}}},
    )


def _ranks() -> Json:
    labels = ", ".join((*_WHERE, "engine", "rank", "workspace"))
    margin = f"ws_guard:margin_ratio{{{_JOB}"
    return table(
        "Ranks closest to the edge",
        "The 20 ranks and workspaces with the least margin on any basis.",
        {"least margin": rows(f"sort(bottomk(20, min by ({labels}) ({margin}}})))")},
        by=(*_WHERE, "engine", "rank", "workspace"),
        unit="percentunit",
        no_value="?",
        steps=MARGIN_STEPS,
        defaults={"custom": {"cellOptions": {"type": "color-text"}}},
    )


def _margin(basis: str) -> Json:
    told = {
        "planned": "the worst step that the configuration allows. Below 0 it does not fit",
        "peak": "the worst call seen since the workers attached",
    }
    return lines(
        f"Least {basis} margin by deployment",
        f"Margin ratio of {told[basis]}; the dashed line is the end of the workspace.",
        [
            query(f'fleet:ws_guard_margin_ratio:min{{{_JOB}, basis="{basis}"}}', "{{job}}"),
            query("vector(0)", "end of the workspace"),
        ],
        limits=["end of the workspace"],
        unit="percentunit",
    )


def _planned_against_peak() -> Json:
    need = f"ws_guard_need_bytes{{{_JOB}"
    return lines(
        "Planned against peak need",
        "Bytes that the worst planned step and the worst call seen need, and the smallest "
        "workspace, by deployment. A peak above its plan is WsGuardPlanExceeded.",
        [
            query(f'max by (job) ({need}, basis="planned"}})', "{{job}} planned"),
            query(f'max by (job) ({need}, basis="peak"}})', "{{job}} peak"),
            query(f"min by (job) (ws_guard_workspace_bytes{{{_JOB}}})", "{{job}} workspace"),
        ],
        limits=["/ workspace$/"],
        unit="bytes",
    )


def _events() -> Json:
    def rise(what: str) -> str:
        return f"sum by (job) (increase(ws_guard_{what}_total{{{_JOB}}}[$__rate_interval]))"

    return lines(
        "Overflows and overruns",
        "Calls that were refused (overflow) and calls whose scratch did not fit (overrun). The "
        "first one of a worker is no increase: the numbers above see it by its timestamp.",
        [
            query(rise("overflows"), "{{job}} overflows"),
            query(rise("overruns"), "{{job}} overruns"),
        ],
        unit="short",
        no_value="none ever",
        custom={"drawStyle": "bars", "fillOpacity": 60},
    )


def _not_ready() -> Json:
    return panel(
        "state-timeline",
        "Why not ready",
        "Checks of /health that fail, by deployment. The exporter's page and /readyz?verbose say "
        "which ranks, and what to set.",
        [
            query(
                f'max by (job, check) (ws_guard_check{{{_JOB}, state="fail"}})', "{{job}} {{check}}"
            )
        ],
        unit="short",
        steps=FAULT_STEPS,
        defaults={
            "custom": {"fillOpacity": 80, "lineWidth": 0},
            "mappings": [
                {
                    "type": "value",
                    "options": {
                        "0": {"text": "passes", "color": "green", "index": 0},
                        "1": {"text": "fails", "color": "red", "index": 1},
                    },
                }
            ],
        },
        options={"showValue": "never", "mergeValues": True, "rowHeight": 0.85},
    )


def _contracts() -> Json:
    labels = ("job", "engine_name", "engine_version", "flashinfer_version", "layout", "contract")
    return table(
        "Contract drift",
        "Releases in use and how their launcher source is understood. `unverified` is a release "
        "nobody has measured; with `mismatch` the probe is off.",
        {"workers": rows(f"count by ({', '.join(labels)}) (ws_guard_worker_info{{{_JOB}}})")},
        by=labels,
        unit="short",
    )


def _alerts() -> Json:
    labels = ("alertname", "severity", "alertstate", "job", "instance", "engine", "workspace")
    return table(
        "Alerts",
        "Alerts of ws_guard that are pending or firing. Each has a section in the runbook.",
        {"active": rows(f'count by ({", ".join(labels)}) (ALERTS{{alertname=~"WsGuard.*"}})')},
        by=labels,
        unit="short",
        no_value="none",
    )
