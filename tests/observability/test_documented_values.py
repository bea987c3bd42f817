"""The `helm install` lines of the documents, rendered with the values that they set."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from places import ROOT

sys.path.append(str(ROOT / "tests" / "documents"))

from blocks import DOCUMENTS, blocks_of
from cluster import set_values

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.observability

LINES = sorted(
    {
        line
        for path in DOCUMENTS
        for block in blocks_of(path)
        if block.language == "sh"
        for line in block.text.replace("\\\n", " ").split("\n")
        if line.startswith("helm ")
    }
)


def nested(values: dict[str, str]) -> dict[str, Any]:
    """`a.b=c` as Helm understands it."""
    told: dict[str, Any] = {}
    for path, value in values.items():
        *above, last = path.split(".")
        place = told
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return told


@pytest.mark.parametrize("line", LINES)
def test_chart_renders_with_what_is_set(asked: Callable[[str, Any], Any], line: str) -> None:
    arguments = shlex.split(line, comments=True)
    values = set_values(arguments)
    (chart,) = (each for each in arguments if each.startswith("dashboards/"))
    told = asked("render", {"chart": str(ROOT / chart), "values": nested(values)})
    assert "error" not in told, told["error"]
    manifests = [yaml.safe_load(text) for name, text in told.items() if name.endswith(".yaml")]
    (pod,) = (one["spec"] for one in manifests if one and one["kind"] == "Deployment")
    images = [each["image"] for each in pod["template"]["spec"]["initContainers"]]
    assert all(image.startswith(values["image.registry"]) for image in images)


def test_there_is_one() -> None:
    assert LINES
