"""What judges manifests and charts, in an environment of its own: judges.py WHAT < request.json.

`validate`: a list of manifests; prints a list of complaints. `lint` and `render`: {chart, values};
prints what Helm says, or the manifests by template. `compose`: a compose file's text; prints what
is wrong with it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

KUBERNETES = "1.33"


def validate(manifests: list[dict[str, Any]]) -> list[str]:
    import kubernetes_validate

    complaints = []
    for manifest in manifests:
        try:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:  # noqa: PERF203 - of each
            complaints.append(f"{manifest['kind']}: {error}")
    return complaints


def lint(request: dict[str, Any]) -> dict[str, Any]:
    from helm_python import chart

    return dict(chart.lint(request["chart"], request["values"], strict=True))


def render(request: dict[str, Any]) -> dict[str, str]:
    from helm_python.chart import Chart
    from helm_python.errors import HelmError

    with Chart.load(request["chart"]) as chart:
        try:
            return dict(chart.render(request["values"], name="demo", namespace="vllm"))
        except HelmError as error:
            return {"error": str(error)}


def compose(text: str) -> str:
    from compose_spec import PyCompose

    try:
        PyCompose.from_yaml(text).validate()
    except ValueError as error:
        return str(error)
    return ""


JUDGES = {judge.__name__: judge for judge in (validate, lint, render, compose)}

if __name__ == "__main__":
    print(json.dumps(JUDGES[sys.argv[1]](json.load(sys.stdin))))
