"""Writes every file of the repository that is made from another: `python -m dashboards.write`.

Grafana's dashboards from `fleet` and `engine`; the PrometheusRule and what the chart holds from the
rules; the tables of docs/METRICS.md from the exporter. A test compares them all with what is there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from ws_guard.exporter.metrics import markdown

from .engine import engine
from .fleet import fleet

HERE = Path(__file__).parent
RULES = HERE / "prometheus" / "ws-guard.rules.yml"
_CHART = HERE / "kubernetes" / "chart" / "files"
_METRICS = HERE.parent / "docs" / "METRICS.md"
_WRITTEN = (
    "# Written by `python -m dashboards.write`: change dashboards/prometheus/ws-guard.rules.yml.\n"
)


def generated() -> dict[Path, str]:
    """Every generated file with what it should hold."""
    rules = RULES.read_text()
    files = {
        HERE / "kubernetes" / "prometheusrule.yaml": _prometheus_rule(rules),
        _CHART / "ws-guard.rules.yml": rules,
        _METRICS: _metrics(_METRICS.read_text(), yaml.safe_load(rules)["groups"]),
    }
    for name, dashboard in (("fleet", fleet()), ("engine", engine())):
        text = json.dumps(dashboard, indent=2) + "\n"
        files[HERE / "grafana" / f"{name}.json"] = text
        files[_CHART / f"{name}.json"] = text
    return files


def _prometheus_rule(rules: str) -> str:
    """The rules as a resource of the Prometheus operator."""
    head = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "ws-guard",
            "namespace": "vllm",
            "labels": {"app.kubernetes.io/name": "ws-guard"},
        },
    }
    # As text, so that comments stay.
    body = "".join(f"  {line}" if line.strip() else line for line in _body(rules))
    written: str = yaml.safe_dump(head, sort_keys=False)
    return f"{_WRITTEN}{written}spec:\n{body}"


def _body(rules: str) -> list[str]:
    lines = rules.splitlines(keepends=True)
    return lines[lines.index("groups:\n") :]


def _metrics(text: str, groups: list[dict[str, Any]]) -> str:
    rules = [rule for group in groups for rule in group["rules"]]
    alerts = [
        f"| [{rule['alert']}](../dashboards/runbook.md#{rule['alert'].lower()}) "
        f"| {rule['labels']['severity']} | {rule['for']} |"
        for rule in rules
        if "alert" in rule
    ]
    records = [f"| `{rule['record']}` | `{rule['expr']}` |" for rule in rules if "record" in rule]
    parts = {
        "metrics": markdown(),
        "records": "\n".join(["| recorded | from |", "|---|---|", *records]),
        "alerts": "\n".join(["| alert | severity | for |", "|---|---|---|", *alerts]),
    }
    for name, table in parts.items():
        before, opening, rest = text.partition(f"<!-- {name} -->\n")
        _, closing, behind = rest.partition(f"\n<!-- /{name} -->")
        if not closing:
            raise SystemExit(f"{_METRICS}: it lacks <!-- {name} --> ... <!-- /{name} -->")
        text = f"{before}{opening}{table}{closing}{behind}"
    return text


def main() -> None:
    """Write them."""
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    main()
