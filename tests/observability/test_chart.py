"""The Helm chart: Helm's own lint and rendering, and what every value does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from places import ROOT, RULES
from pods import check_pod, container, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Render = Callable[..., dict[str, dict[str, Any]]]

pytestmark = pytest.mark.observability

CHART = ROOT / "dashboards" / "kubernetes" / "chart"
KINDS = {"Deployment", "NetworkPolicy", "PodMonitor", "PrometheusRule", "ConfigMap"}

#: As many values as there are, each unlike its default.
CHANGED: dict[str, Any] = {
    "commonLabels": {"team": "inference"},
    "image": {"registry": "registry.example.com", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "port": 9_999,
    "exporter": {"env": [{"name": "WS_GUARD_STRICT", "value": "1"}]},
    "engine": {
        "uid": 3_000,
        "env": [{"name": "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", "value": "2561671168"}],
        "nodeSelector": {"gpu": "b200"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
    "podMonitor": {
        "labels": {"release": "prometheus"},
        "interval": "30s",
        "scrapeTimeout": "10s",
        "sampleLimit": 500,
        "podTargetLabels": ["team"],
        "relabelings": [{"targetLabel": "cluster", "replacement": "a"}],
        "metricRelabelings": [{"action": "labeldrop", "regex": "op"}],
    },
    "prometheusRule": {
        "labels": {"release": "prometheus"},
        "runbookBaseUrl": "https://wiki.example.org/",
        "alerts": {
            "WsGuardMarginLow": {"threshold": 0.05, "for": "15m", "labels": {"team": "inference"}},
            "WsGuardOverflow": {"threshold": 1800},
            "WsGuardPlannedOverflow": {"threshold": 67_108_864},
            "WsGuardExporterDown": {"enabled": False},
        },
    },
    "dashboards": {"label": "dashboard", "labelValue": "yes", "annotations": {"folder": "GPU"}},
}


@pytest.fixture(scope="module")
def render(asked: Callable[[str, Any], Any]) -> Render:
    """`render(values)`: the manifests by kind."""

    def run(values: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        told = asked("render", {"chart": str(CHART), "values": values or {}})
        assert "error" not in told, told["error"]
        loaded = [yaml.safe_load(text) for name, text in told.items() if name.endswith(".yaml")]
        return {one["kind"]: one for one in loaded if one}

    return run


@pytest.mark.parametrize("values", [{}, CHANGED])
def test_lint(asked: Callable[[str, Any], Any], values: dict[str, Any]) -> None:
    told = asked("lint", {"chart": str(CHART), "values": values})
    assert told["errors"] == []
    # 1 is information: Helm would like an icon.
    assert [message for message in told["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("values", [{}, CHANGED])
def test_what_it_renders_is_valid(
    render: Render, complaints: Callable[[list[Any]], list[str]], values: dict[str, Any]
) -> None:
    rendered = render(values)
    assert set(rendered) == KINDS
    assert complaints(list(rendered.values())) == []
    check_pod(rendered["Deployment"]["spec"]["template"]["spec"])


def test_an_engine_that_insists_on_root(render: Render) -> None:
    pod = render({"engine": {"uid": 0}})["Deployment"]["spec"]["template"]["spec"]
    check_pod(pod, restricted=False)
    assert container(pod, "exporter")["securityContext"]["runAsNonRoot"] is True


def test_by_default_it_is_what_the_other_files_are(render: Render) -> None:
    rendered = render()
    assert rendered["PrometheusRule"]["spec"] == yaml.safe_load(RULES.read_text())
    data = rendered["ConfigMap"]["data"]
    for name in ("fleet", "engine"):
        original = ROOT / "dashboards" / "grafana" / f"{name}.json"
        assert json.loads(data[f"ws-guard-{name}.json"]) == json.loads(original.read_text())
    ours = rendered["Deployment"]["spec"]["template"]["spec"]
    other = yaml.safe_load((CHART.parent / "deployment.yaml").read_text())
    plain = other["spec"]["template"]["spec"]
    assert ours["volumes"] == plain["volumes"]
    assert ours["securityContext"] == plain["securityContext"]
    for name in ("engine", "probe"):
        extra = {"imagePullPolicy"}
        theirs = container(plain, name)
        assert {k: v for k, v in container(ours, name).items() if k not in extra} == theirs


def test_labels_are_everywhere(render: Render) -> None:
    rendered = render(CHANGED)
    for kind, one in rendered.items():
        assert one["metadata"]["labels"]["team"] == "inference", kind
        assert one["metadata"]["namespace"] == "vllm"
    assert rendered["Deployment"]["spec"]["template"]["metadata"]["labels"]["team"] == "inference"
    for kind in ("PodMonitor", "PrometheusRule"):
        assert rendered[kind]["metadata"]["labels"]["release"] == "prometheus"
    assert rendered["ConfigMap"]["metadata"]["labels"]["dashboard"] == "yes"
    assert rendered["ConfigMap"]["metadata"]["annotations"] == {"folder": "GPU"}


def test_pod_values(render: Render) -> None:
    pod = render(CHANGED)["Deployment"]["spec"]["template"]["spec"]
    image = "registry.example.com/ws-guard@sha256:" + "0" * 64
    assert {container(pod, name)["image"] for name in ("plan", "probe", "exporter")} == {image}
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    exporter = container(pod, "exporter")
    assert exporter["ports"] == [{"name": "metrics", "containerPort": 9_999}]
    assert environment(exporter)["WS_GUARD_STRICT"] == "1"
    size = {"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "2561671168"}
    assert environment(container(pod, "plan")) == size
    assert size.items() <= environment(container(pod, "engine")).items()


def test_pod_monitor_values(render: Render) -> None:
    rendered = render(CHANGED)
    spec = rendered["PodMonitor"]["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("30s", "10s")
    assert (spec["sampleLimit"], spec["podTargetLabels"]) == (500, ["team"])
    assert endpoint["relabelings"][-1] == {"targetLabel": "cluster", "replacement": "a"}
    assert [one["targetLabel"] for one in endpoint["relabelings"]] == ["group", "group", "cluster"]
    assert endpoint["metricRelabelings"] == [{"action": "labeldrop", "regex": "op"}]
    labels = rendered["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert "sampleLimit" not in render({"podMonitor": {"sampleLimit": 0}})["PodMonitor"]["spec"]


def test_alert_values(render: Render, judge: Callable[..., str], tmp_path: Path) -> None:
    spec = render(CHANGED)["PrometheusRule"]["spec"]
    alerts = {r["alert"]: r for group in spec["groups"] for r in group["rules"] if "alert" in r}
    assert len(alerts) == 9
    assert "WsGuardExporterDown" not in alerts
    low = alerts["WsGuardMarginLow"]
    assert "< 0.05 # threshold" in low["expr"]
    assert low["for"] == "15m"
    assert low["labels"] == {"severity": "warning", "team": "inference"}
    assert "< 1800 # threshold" in alerts["WsGuardOverflow"]["expr"]
    assert "67108864" in alerts["WsGuardPlannedOverflow"]["expr"].replace(
        "6.7108864e+07", "67108864"
    )
    for name, rule in alerts.items():
        url = f"https://wiki.example.org/runbook.md#{name.lower()}"
        assert rule["annotations"]["runbook_url"] == url
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump(spec))
    judge("promtool", "check", "rules", rules)


def test_every_alert_can_be_switched_off(render: Render) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = schema["properties"]["prometheusRule"]["properties"]["alerts"]["properties"]
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = {r["alert"]: r for group in groups for r in group["rules"] if "alert" in r}
    assert set(known) == set(rules)
    with_threshold = {name for name, rule in rules.items() if "# threshold" in rule["expr"]}
    assert {name for name in known if "threshold" in known[name]["properties"]} == with_threshold
    off = {"prometheusRule": {"alerts": {name: {"enabled": False} for name in known}}}
    left = render(off)["PrometheusRule"]["spec"]["groups"]
    assert [rule for group in left for rule in group["rules"] if "alert" in rule] == []


def test_parts_can_be_left_out(render: Render) -> None:
    parts = ("engine", "podMonitor", "prometheusRule", "dashboards")
    assert render({part: {"enabled": False} for part in parts}) == {}
    monitoring = {"engine": {"enabled": False}, "podMonitor": {"matchLabels": {"a": "b"}}}
    rendered = render(monitoring)
    assert set(rendered) == {"PodMonitor", "PrometheusRule", "ConfigMap"}
    assert rendered["PodMonitor"]["spec"]["selector"]["matchLabels"] == {"a": "b"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prot": 9_999}, "prot"),
        ({"port": 70_000}, "port"),
        ({"podMonitor": {"interval": "15 seconds"}}, "interval"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"prometheusRule": {"alerts": {"WsGuardNothing": {"enabled": False}}}}, "WsGuardNothing"),
        ({"prometheusRule": {"alerts": {"WsGuardWorkerGone": {"threshold": 1}}}}, "threshold"),
        # What no cluster would take, or no pod could run.
        ({"port": 8_000}, "port and engine.port are both 8000"),
        ({"exporter": {"env": [{"nam": "WS_GUARD_STRICT", "value": "1"}]}}, "'nam' not allowed"),
        ({"engine": {"env": [{"value": "1"}]}}, "missing property 'name'"),
        ({"imagePullSecrets": [{}]}, "missing property 'name'"),
        ({"board": {"sizeLimit": "64 MB"}}, "/board/sizeLimit"),
        ({"engine": {"models": {"claimName": ""}}}, "/engine/models/claimName"),
    ],
)
def test_a_bad_value_is_refused(
    asked: Callable[[str, Any], Any], values: dict[str, Any], words: str
) -> None:
    told = asked("render", {"chart": str(CHART), "values": values})
    assert words in told["error"]


def test_every_value_is_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def same(told: dict[str, Any], known: dict[str, Any]) -> None:
        assert known["additionalProperties"] is False
        assert set(told) == set(known["properties"]) - {"global"}
        for name, value in told.items():
            below = known["properties"][name]
            if isinstance(value, dict) and "properties" in below and name != "alerts":
                same(value, below)

    same(values, schema)


def test_a_label_is_there_once_and_selectors_stay(render: Render) -> None:
    """Labels that everything has, some of them an object's own as well."""
    common = {"release": "all", "app.kubernetes.io/name": "mine", "monitoring": "no", "team": "a"}
    rendered = render({"commonLabels": common, "podMonitor": {"labels": {"release": "prometheus"}}})
    assert rendered["PodMonitor"]["metadata"]["labels"]["release"] == "prometheus"
    assert rendered["PrometheusRule"]["metadata"]["labels"]["release"] == "all"
    deployment = rendered["Deployment"]["spec"]
    pod = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"].items() <= pod.items()
    assert (pod["monitoring"], pod["team"]) == ("ws-guard", "a")
