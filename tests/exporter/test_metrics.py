"""The table of metrics, the exposition and the documentation agree; other parsers agree too."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from doors import unavailable
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from slot_worker import busy

from ws_guard.exporter.metrics import METRICS, PREFIX, markdown

if TYPE_CHECKING:
    from conftest import Attach
    from prometheus_client import CollectorRegistry

    from ws_guard.exporter.refresh import Refresher


ROOT = Path(__file__).parents[2]


def test_every_metric_of_the_table_occurs(
    attach: Attach, refresher: Refresher, registry: CollectorRegistry
) -> None:
    busy(attach)
    refresher.refresh()
    declared = {metric.name: metric for metric in METRICS}
    met = set()
    for family in parse_text(generate_latest(registry).decode()):
        suffix = "_total" if family.type == "counter" else ""
        metric = declared[(family.name + suffix).removeprefix(PREFIX)]
        met.add(metric.name)
        expected = {"info": "gauge"}.get(metric.kind, metric.kind)
        assert (metric.name, family.type) == (metric.name, expected)
        assert family.documentation == metric.help
        assert family.samples, metric.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), metric.name
    assert met == set(declared)


def test_openmetrics(attach: Attach, refresher: Refresher, registry: CollectorRegistry) -> None:
    busy(attach)
    refresher.refresh()
    text = openmetrics.generate_latest(registry).decode()
    families = {family.name: family for family in parse_openmetrics(text)}
    assert families[PREFIX + "worker"].type == "info"
    assert families[PREFIX + "native_calls"].type == "counter"
    assert families[PREFIX + "check"].type == "gauge"


def test_promtool_finds_nothing_to_say(
    attach: Attach, refresher: Refresher, registry: CollectorRegistry
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        unavailable("promtool is not installed (Debian: prometheus)")
    busy(attach)
    refresher.refresh()
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_the_documented_table_is_the_real_one() -> None:
    text = (ROOT / "docs" / "METRICS.md").read_text()
    # Write it anew: make generated
    assert markdown() in text
