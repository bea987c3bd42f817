"""What must be true of every pod that runs the exporter, whoever wrote it: manifests and chart."""

from __future__ import annotations

import re
from typing import Any

from places import ROOT

from ws_guard.exporter.app import create_app
from ws_guard.settings import DECLARED, parse_listen, require_settings

#: As the image has them: `ENV WS_GUARD_LISTEN`, `USER`.
DOCKERFILE = (ROOT / "Dockerfile").read_text()
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def image_setting(name: str) -> str:
    """The value of one of the image's environment variables."""
    found = re.search(rf"\b{name}=(\S+)", DOCKERFILE)
    assert found is not None, name
    return found[1]


def image_uid() -> int:
    """The user that the image runs as."""
    found = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    return int(found[1])


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """A container of a pod's spec, of either list."""
    (found,) = [c for c in pod["initContainers"] + pod["containers"] if c["name"] == name]
    return dict(found)


def environment(of: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in of.get("env", [])}


def check_pod(pod: dict[str, Any], *, restricted: bool = True) -> None:
    """The whole pod against the application's own routes and settings."""
    check_security(pod, restricted)
    check_probes(pod)
    check_board(pod)
    check_gate(pod)
    assert pod["enableServiceLinks"] is False
    volumes = {volume["name"] for volume in pod["volumes"]}
    for each in pod["initContainers"] + pod["containers"]:
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes, each["name"]
        known = {name for name in environment(each) if name.startswith("WS_GUARD_")}
        assert known <= set(DECLARED), each["name"]


def check_security(pod: dict[str, Any], restricted: bool) -> None:
    """The restricted Pod Security Standard, and read-only roots."""
    context = pod["securityContext"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    if restricted:
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] != 0
    for each in pod["initContainers"] + pod["containers"]:
        assert _RESTRICTED.items() <= each["securityContext"].items(), each["name"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    # No hostPath among them.
    allowed = {"emptyDir", "persistentVolumeClaim", "configMap", "secret"}
    assert all(set(volume) - {"name"} <= allowed for volume in pod["volumes"])


def check_probes(pod: dict[str, Any]) -> None:
    """A native sidecar, probed at routes and a port that the application has."""
    exporter = container(pod, "exporter")
    assert exporter in pod["initContainers"]
    assert exporter["restartPolicy"] == "Always"
    # The gate comes first, the sidecar last: what stops the pod stops it before anything runs.
    assert [each["name"] for each in pod["initContainers"]] == ["plan", "probe", "exporter"]
    (port,) = exporter["ports"]
    listen = environment(exporter).get("WS_GUARD_LISTEN") or image_setting("WS_GUARD_LISTEN")
    hosts, number = parse_listen(listen)
    # The kubelet and Prometheus come by the pod's address.
    assert (port["containerPort"], hosts) == (number, ["0.0.0.0", "::"])
    app = create_app(require_settings(environment(exporter)))
    routes = {route.path for route in app.routes}
    paths = {
        kind: exporter[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
    }
    assert {probe["port"] for probe in paths.values()} == {port["name"]}
    assert {kind: probe["path"] for kind, probe in paths.items()} == {
        # Asking the startup probe for readiness would keep the engine from ever starting.
        "startup": "/livez",
        "liveness": "/livez",
        "readiness": "/readyz",
    }
    assert {probe["path"] for probe in paths.values()} <= routes


def check_board(pod: dict[str, Any]) -> None:
    """One in-memory board, of one group, whose owners the exporter trusts."""
    exporter, engine = container(pod, "exporter"), container(pod, "engine")
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "board"]
    assert volume["emptyDir"]["medium"] == "Memory"
    for each, read_only in ((exporter, True), (engine, False)):
        (mount,) = [mount for mount in each["volumeMounts"] if mount["name"] == "board"]
        assert mount.get("readOnly", False) is read_only
        settings = require_settings(environment(each))
        assert settings.board == mount["mountPath"]
        assert settings.board_group == str(pod["securityContext"]["fsGroup"])
    assert exporter["securityContext"]["runAsUser"] == image_uid()
    trusted = require_settings(environment(exporter)).trusted_uids
    assert pod["securityContext"]["runAsUser"] in trusted


def check_gate(pod: dict[str, Any]) -> None:
    """What is planned is what is launched."""
    gate, engine = container(pod, "plan"), container(pod, "engine")
    before, behind = split_gate(gate)
    assert before[:2] == ["ws-guard", "plan"]
    assert gate["args"] == engine["args"]
    assert engine["command"][: len(behind)] == behind
    shared = {k: v for k, v in environment(engine).items() if k.startswith("VLLM_")}
    assert environment(gate) == shared


def split_gate(gate: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The words before and behind `--` of the gate's command."""
    command = gate["command"]
    cut = command.index("--")
    return command[:cut], command[cut + 1 :]
