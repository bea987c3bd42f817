"""Grafana panels in a few words: what all of ours have in common is said here, once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_uppercase
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

_COLUMNS = 24
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

#: Colours of a margin ratio: below nothing, below the alert's threshold, above.
MARGIN_STEPS: Sequence[tuple[str, float | None]] = (("red", None), ("orange", 0.0), ("green", 0.1))
#: The same where the plan is known: whatever fits is as it was asked for.
PLAN_STEPS: Sequence[tuple[str, float | None]] = (("red", None), ("green", 0.0))
#: Colours of a count that should be nothing.
FAULT_STEPS: Sequence[tuple[str, float | None]] = (("green", None), ("red", 1.0))
#: Colours of what should be 1.
UP_STEPS: Sequence[tuple[str, float | None]] = (("red", None), ("green", 1.0))


def query(expr: str, legend: str = "", *, instant: bool = False, kind: str = "") -> Json:
    """One expression. `kind` is `table` or `heatmap`, else a time series."""
    return {
        "datasource": _DATASOURCE,
        "expr": expr,
        "legendFormat": legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": kind or "time_series",
    }


def rows(expr: str) -> Json:
    """One expression whose series are rows of a table, as they are now."""
    return query(expr, instant=True, kind="table")


def panel(
    kind: str,
    title: str,
    description: str,
    queries: Iterable[Json],
    *,
    unit: str,
    no_value: str = "no data",
    steps: Sequence[tuple[str, float | None]] = (("green", None),),
    **more: Any,  # noqa: ANN401 - whatever else a panel of that kind has
) -> Json:
    """A panel; `defaults`, `overrides`, `options` and `transformations` go where Grafana wants."""
    thresholds = {"mode": "absolute", "steps": [{"color": c, "value": v} for c, v in steps]}
    defaults = {"unit": unit, "noValue": no_value, "thresholds": thresholds}
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": _DATASOURCE,
        "targets": [
            {**each, "refId": ref} for each, ref in zip(queries, ascii_uppercase, strict=False)
        ],
        "fieldConfig": {
            "defaults": {**defaults, **more.pop("defaults", {})},
            "overrides": more.pop("overrides", []),
        },
        "options": more.pop("options", {}),
        **more,
    }


def stat(title: str, description: str, expr: str, **more: Any) -> Json:  # noqa: ANN401 - as above
    """A number now, on the colour of its state."""
    options = {
        "colorMode": "background",
        "graphMode": "none",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return panel("stat", title, description, [query(expr)], options=options, **more)


def lines(
    title: str,
    description: str,
    queries: Iterable[Json],
    *,
    limits: Iterable[str] = (),
    custom: Json | None = None,
    **more: Any,  # noqa: ANN401 - as above
) -> Json:
    """Lines over time; series whose names match `limits` are dashed, as the limits they are."""
    dashes = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
        {"id": "custom.fillOpacity", "value": 0},
        {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
    ]
    return panel(
        "timeseries",
        title,
        description,
        queries,
        defaults={"custom": {"fillOpacity": 8, "showPoints": "never", **(custom or {})}},
        overrides=[
            {"matcher": {"id": "byRegexp", "options": limit}, "properties": dashes}
            for limit in limits
        ],
        options={
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        **more,
    )


def table(
    title: str,
    description: str,
    columns: dict[str, Json],
    *,
    units: dict[str, str] | None = None,
    by: Sequence[str],
    **more: Any,  # noqa: ANN401 - as above
) -> Json:
    """A table with a row for each set of the labels `by`, and a column for each query."""
    names = [f"Value #{ref}" for ref, _ in zip(ascii_uppercase, columns, strict=False)]
    if len(columns) == 1:
        names = ["Value"]
    order = {name: index for index, name in enumerate([*by, *names])}
    organize = {
        "indexByName": order,
        "renameByName": dict(zip(names, columns, strict=True)),
        "excludeByName": {"Time": True},
        "includeByName": {},
    }
    return panel(
        "table",
        title,
        description,
        columns.values(),
        overrides=[
            {
                "matcher": {"id": "byName", "options": name},
                "properties": [{"id": "unit", "value": unit}],
            }
            for name, unit in (units or {}).items()
        ],
        transformations=[
            {"id": "merge", "options": {}},
            {"id": "organize", "options": organize},
        ],
        options={"showHeader": True, "cellHeight": "sm", "footer": {"show": False}},
        **more,
    )


def variable(name: str, label: str, values_of: str) -> Json:
    """A choice among the values of a label, all of them at first."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": _DATASOURCE,
        "query": {"query": values_of, "refId": name},
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


_DATASOURCE_VARIABLE: Json = {
    "type": "datasource",
    "name": "datasource",
    "label": "Data source",
    "query": "prometheus",
    "refresh": 1,
    "current": {"text": "default", "value": "default"},
}


def dashboard(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[Json],
    shelves: Iterable[tuple[int, Sequence[Json]]],
    links: Sequence[Json] = (),
) -> Json:
    """A dashboard of shelves: each a height and the panels that share its width."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["ws_guard", "flashinfer", "vllm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_DATASOURCE_VARIABLE, *variables]},
        "annotations": {"list": []},
        "links": list(links),
        "panels": list(_placed(shelves)),
    }


def _placed(shelves: Iterable[tuple[int, Sequence[Json]]]) -> Iterable[Json]:
    y, number = 0, 0
    for height, panels in shelves:
        width = _COLUMNS // len(panels)
        for place, each in enumerate(panels):
            number += 1
            wide = width if place < len(panels) - 1 else _COLUMNS - place * width
            position = {"x": place * width, "y": y, "w": wide, "h": height}
            yield {"id": number, **each, "gridPos": position}
        y += height
