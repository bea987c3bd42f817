"""`kubectl`, `helm` and `docker` without what they need: names and values are those of our files.

What `kubectl exec` would run in a container runs here.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from answers import become, refuse, unknown

ROOT = Path(__file__).parents[2]
#: Options of `kubectl` with a value, and those that stand alone.
WITH_VALUE = {"-n", "-c", "-f", "-l", "-o"}
ALONE = re.compile(r"--(previous|prefix|timestamps|tail=\d+)")
KUBERNETES = ROOT / "dashboards" / "kubernetes"
#: The value in a pod that a reader of the runbook looks for.
SIZE = {"name": "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", "value": "2561671168"}


def _read(path: Path) -> list[Any]:
    """The documents of a YAML file. Imported here: most commands start without."""
    import yaml

    return list(yaml.safe_load_all(path.read_text()))


def _pod() -> dict[str, Any]:
    (deployment,) = _read(KUBERNETES / "deployment.yaml")
    pod: dict[str, Any] = deployment["spec"]["template"]
    return pod


def kubectl(arguments: list[str]) -> int:
    """`exec`, `logs`, `get`, `port-forward` and `apply`, of the pods of deployment.yaml."""
    options: dict[str, str] = {}
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        if word in WITH_VALUE:
            options[word] = rest.pop(0)
        elif not word.startswith("-") or ALONE.fullmatch(word):
            words.append(word)
        else:
            return unknown(f"kubectl {word}")
    verb = next((word for word in words if not word.startswith("-")), "")
    return {"exec": _exec, "logs": _logs, "get": _get, "apply": _apply}.get(verb, _forward)(
        words, options, rest
    )


def _exec(_words: list[str], options: dict[str, str], command: list[str]) -> int:
    if problem := _no_container(options["-c"]):
        return refuse(problem)
    return become(*command)


def _logs(words: list[str], options: dict[str, str], _rest: list[str]) -> int:
    if "-c" in options and (problem := _no_container(options["-c"])):
        return refuse(problem)
    prefix = "[pod/vllm-0/engine] " if "--prefix" in words else ""
    for line in Path("engine.log").read_text().splitlines():
        print(prefix + line)
    print("INFO ws_guard: attached")
    return 0


def _get(words: list[str], options: dict[str, str], _rest: list[str]) -> int:
    pod = _pod()
    name, _, value = options.get("-l", "").partition("=")
    if name and pod["metadata"]["labels"].get(name) != value:
        return refuse(f"no pod has the label {name}={value}")
    if not {"pod", "pods"} & set(words):
        return unknown(f"kubectl {words}")
    pod["spec"]["containers"][0].setdefault("env", []).append(SIZE)
    # JSON is YAML; a reader looks for lines.
    print(json.dumps(pod, indent=2))
    return 0


def _apply(_words: list[str], options: dict[str, str], _rest: list[str]) -> int:
    documents = _read(Path(options["-f"]))
    return (
        0 if all("kind" in each for each in documents) else refuse(f"{options['-f']}: no manifest")
    )


def _forward(words: list[str], _options: dict[str, str], _rest: list[str]) -> int:
    port = _container("exporter")["ports"][0]["containerPort"]
    if words[0] != "port-forward" or words[2] != str(port):
        return unknown(f"kubectl {words}")
    return 0


def _containers() -> list[dict[str, Any]]:
    spec = _pod()["spec"]
    return [*spec["initContainers"], *spec["containers"]]


def _container(name: str) -> dict[str, Any]:
    return next(each for each in _containers() if each["name"] == name)


def _no_container(name: str) -> str:
    known = {each["name"] for each in _containers()}
    return "" if name in known else f"deployment.yaml has no container {name}: {known}"


def helm(arguments: list[str]) -> int:
    """`helm install NAME CHART --namespace N --set A=B`: the chart has these values."""
    if arguments[0] not in ("install", "upgrade", "template"):
        return unknown(f"helm {arguments[0]}")
    chart = next((Path(each) for each in arguments if (Path(each) / "Chart.yaml").exists()), None)
    if chart is None:
        return refuse(f"no chart in {arguments}")
    schema = json.loads((chart / "values.schema.json").read_text())
    for path in set_values(arguments):
        below = schema
        for part in path.split("."):
            below = below.get("properties", {}).get(part)
            if below is None:
                return refuse(f"the chart has no value {path}")
    return 0


def set_values(arguments: list[str]) -> dict[str, str]:
    """What `--set` sets, by path."""
    pairs = [after for word, after in pairwise(arguments) if word == "--set"]
    return dict(pair.split("=", 1) for pair in pairs)


def docker(arguments: list[str]) -> int:
    """`docker compose up|down`, and `docker build` with build arguments of the Dockerfile."""
    if arguments[0] == "compose":
        services = _read(ROOT / "docker-compose.yaml")[0]["services"]
        files = [ROOT / each.get("build", ".") / "Dockerfile" for each in services.values()]
        known = {"up", "down", "logs", "--build", "--detach", *services}
        strange = set(arguments[1:]) - known
        return refuse(f"docker compose {strange}") if strange or not files[0].exists() else 0
    if arguments[0] == "build":
        text = (ROOT / "Dockerfile").read_text()
        given = re.findall(r"--build-arg[ =](\w+)=", " ".join(arguments))
        strange = set(given) - set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
        return refuse(f"the Dockerfile has no {strange}") if strange else 0
    return unknown(f"docker {arguments}")
