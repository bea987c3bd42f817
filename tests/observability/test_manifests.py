"""Kubernetes manifests: their schemas, and the application that they are about."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from places import ROOT, RULES
from pods import DOCKERFILE, check_pod, container, environment, split_gate

from ws_guard.exporter.app import create_app
from ws_guard.settings import require_settings
from ws_guard.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.observability

FOLDER = ROOT / "dashboards" / "kubernetes"
MANIFESTS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))
}
#: A model of 64 query heads with sparse MLA, as its config tells.
CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "index_topk": 2048,
    "index_head_dim": 128,
    "num_attention_heads": 64,
    "num_hidden_layers": 78,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "max_position_embeddings": 202_752,
}


def templates() -> dict[str, dict[str, Any]]:
    """Every pod template, by where it stands."""
    group = MANIFESTS["leaderworkerset"]["spec"]["leaderWorkerTemplate"]
    return {
        "deployment": MANIFESTS["deployment"]["spec"]["template"],
        "leader": group["leaderTemplate"],
        "worker": group["workerTemplate"],
    }


def as_known_kinds() -> list[dict[str, Any]]:
    """The manifests; the pods of the LeaderWorkerSet, of no schema here, as Deployments."""
    known = [copy.deepcopy(one) for name, one in MANIFESTS.items() if name != "leaderworkerset"]
    for name in ("leader", "worker"):
        stand_in = copy.deepcopy(MANIFESTS["deployment"])
        stand_in["spec"]["template"] = copy.deepcopy(templates()[name])
        for each in stand_in["spec"]["template"]["spec"]["containers"]:
            for key in [key for key, value in each.items() if value is None]:
                del each[key]
        known.append(stand_in)
    return known


def test_schemas_accept_them(complaints: Callable[[list[Any]], list[str]]) -> None:
    assert len(MANIFESTS) == 6
    assert complaints(as_known_kinds()) == []


def test_schemas_would_complain(complaints: Callable[[list[Any]], list[str]]) -> None:
    broken = {one["kind"]: one for one in as_known_kinds()}
    pod = broken["Deployment"]["spec"]["template"]["spec"]
    pod["initContainers"][-1]["restartPolicies"] = "Always"
    broken["NetworkPolicy"]["spec"]["policyTypes"] = "Ingress"
    broken["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["interval"] = "15 seconds"
    broken["PrometheusRule"]["spec"]["groups"][0]["rules"][0]["for"] = "10 minutes"
    found = complaints(list(broken.values()))
    kinds = {"Deployment", "NetworkPolicy", "PodMonitor", "PrometheusRule"}
    assert {line.split(":")[0] for line in found} == kinds


@pytest.mark.parametrize("name", ["deployment", "leader", "worker"])
def test_pods_fit_the_application(name: str) -> None:
    check_pod(templates()[name]["spec"])


def test_leader_and_worker_have_the_same_environment() -> None:
    leader, worker = (container(templates()[n]["spec"], "engine") for n in ("leader", "worker"))
    assert leader["env"] == worker["env"]
    assert leader["args"] == worker["args"]
    assert worker["command"] == [*leader["command"], "--headless"]


def test_pod_monitor_finds_every_pod() -> None:
    (endpoint,) = MANIFESTS["podmonitor"]["spec"]["podMetricsEndpoints"]
    selected = MANIFESTS["podmonitor"]["spec"]["selector"]["matchLabels"]
    policy = MANIFESTS["networkpolicy"]["spec"]
    app = create_app(require_settings({}))
    assert endpoint["path"] in {route.path for route in app.routes}
    for name, template in templates().items():
        assert selected.items() <= template["metadata"]["labels"].items(), name
        assert (
            policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        )
        (port,) = container(template["spec"], "exporter")["ports"]
        assert endpoint["port"] == port["name"]
    ports = [rule["ports"][0]["port"] for rule in policy["ingress"] if "ports" in rule]
    assert ports == ["metrics", "http"]


def test_one_release_everywhere() -> None:
    chart = yaml.safe_load((FOLDER / "chart" / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__
    assert f"\nARG VERSION={__version__}\n" in DOCKERFILE
    files = [*FOLDER.glob("*.yaml"), ROOT / "docker-compose.yaml"]
    tags = [tag for file in files for tag in re.findall(r"image: ws-guard:(\S+)", file.read_text())]
    assert len(tags) == 7
    assert set(tags) == {__version__}


def test_prometheus_rule_is_the_rules() -> None:
    assert MANIFESTS["prometheusrule"]["spec"] == yaml.safe_load(RULES.read_text())


@pytest.mark.parametrize("name", ["deployment", "leader"])
@pytest.mark.parametrize(
    ("size", "code", "words"),
    [
        (None, 0, "FITS"),
        ("413138944", 1, "unset VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"),
        ("394 MB", 2, "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"),
    ],
)
def test_gate(name: str, size: str | None, code: int, words: str, tmp_path: Path) -> None:
    """The container's command as the kubelet would run it: 0 lets the engine start."""
    gate = container(templates()[name]["spec"], "plan")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    before, behind = split_gate(gate)
    model, *flags = gate["args"]
    assert model == "/models/glm-5.2"
    given = {} if size is None else {"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": size}
    done = subprocess.run(
        [sys.executable, "-m", "ws_guard", *before[1:], "--", *behind, str(tmp_path), *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment(gate), **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout + done.stderr
