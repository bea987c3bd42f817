"""Grafana's dashboards: conventions, Grafana's own types, and data behind every expression."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from places import DASHBOARDS, dashboard, panels

from dashboards.write import generated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from play import Played

pytestmark = [pytest.mark.observability, pytest.mark.timeout(600)]

# JSON has no enums: their values stand for them.
_TYPED = """
import type {{Dashboard}} from "@grafana/schema";
type Json<T> = T extends string ? `${{T}}` : T extends object ? {{[K in keyof T]: Json<T[K]>}} : T;
const dashboard: Json<Dashboard> = {};
export default dashboard;
"""

#: Expressions that may have no data, each with its reason; three at most.
EXCEPTIONS: dict[str, str] = {}


def expressions() -> Iterator[tuple[str, str, str]]:
    """(dashboard, panel, expression)."""
    for name in DASHBOARDS:
        for panel in panels(name):
            for target in panel["targets"]:
                yield name, panel["title"], target["expr"]


def filled_in(expr: str, values: dict[str, str] | None = None) -> str:
    """An expression as Grafana asks it at a scrape interval of 15 s, with All chosen."""
    expr = expr.replace("$__rate_interval", "1m")
    return re.sub(r"\$(\w+)", lambda name: (values or {}).get(name[1], ".*"), expr)


def test_files_are_what_their_sources_make_of_them() -> None:
    for path, text in generated().items():
        assert path.read_text() == text, f"{path}: run python -m dashboards.write"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_says_what_it_shows(name: str) -> None:
    assert len({panel["id"] for panel in panels(name)}) == len(panels(name))
    for panel in panels(name):
        defaults = panel["fieldConfig"]["defaults"]
        title = panel["title"]
        assert len(panel["description"]) > len(title), title
        assert defaults["unit"], title
        assert defaults["noValue"], title
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title
        assert not re.search(r"\[\d+[smh]\]", json.dumps(panel["targets"])), title


@pytest.mark.parametrize(
    ("name", "title", "variables"),
    [
        ("fleet", "Workspace margin: fleet", ["datasource", "job"]),
        (
            "engine",
            "Workspace margin: engine",
            ["datasource", "job", "instance", "engine", "rank", "workspace"],
        ),
    ],
)
def test_head(name: str, title: str, variables: list[str]) -> None:
    told = dashboard(name)
    assert (told["uid"], told["title"]) == (f"ws-guard-{name}", title)
    assert "ws_guard" in told["tags"]
    assert 39 <= told["schemaVersion"] <= 42
    assert [each["name"] for each in told["templating"]["list"]] == variables
    # Every variable is asked for, and nothing is asked for that is none.
    used = set(re.findall(r"\$(\w+)|\$\{(\w+)\}", json.dumps(told)))
    assert {one or other for one, other in used} - {"__all", "__rate_interval"} == set(variables)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels(name):
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafanas_types_accept_it(name: str, node_modules: Path, judge: Callable[..., str]) -> None:
    home, tsc = node_modules.parent, node_modules / "typescript" / "bin" / "tsc"
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext"]
    options += ["--moduleResolution", "bundler", "--target", "es2022"]
    source, broken = home / f"{name}.ts", home / f"{name}-broken.ts"
    text = DASHBOARDS[name].read_text()
    source.write_text(_TYPED.format(text))
    judge("node", tsc, *options, source, cwd=str(home))
    broken.write_text(_TYPED.format(text.replace('"schemaVersion": 39', '"schemaVersion": "39"')))
    with pytest.raises(AssertionError, match="'string' is not assignable to type 'number'"):
        judge("node", tsc, *options, broken, cwd=str(home))


def test_every_expression_has_data(played: Played) -> None:
    assert len(EXCEPTIONS) <= 3
    empty = {
        expr: f"{name}: {title}"
        for name, title, expr in expressions()
        if not played.prometheus.query(filled_in(expr), played.undersized)
    }
    assert {expr: where for expr, where in empty.items() if expr not in EXCEPTIONS} == {}


def test_variables_offer_what_there_is_and_one_choice_has_data(played: Played) -> None:
    chosen: dict[str, str] = {"job": "ws-guard-demo"}
    for variable in dashboard("engine")["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert asked is not None
        selector = filled_in(asked[1], chosen)
        moment = {"start": played.began, "end": played.ended}
        found = played.prometheus.ask(f"label/{asked[2]}/values", **{"match[]": selector}, **moment)
        assert found, variable["name"]
        chosen.setdefault(variable["name"], found[0])
    assert chosen | {"instance": ""} == {
        "job": "ws-guard-demo",
        "instance": "",
        "engine": "0",
        "rank": "0",
        "workspace": "ws0",
    }
    need = next(panel for panel in panels("engine") if panel["title"] == "Need against size")
    for target in need["targets"]:
        assert played.prometheus.query(filled_in(target["expr"], chosen), played.undersized)
