"""docker-compose.yaml: as its specification reads it, and against image, settings and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from places import ROOT
from pods import image_setting

from ws_guard.settings import DECLARED, parse_listen, require_settings

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.observability

TEXT = (ROOT / "docker-compose.yaml").read_text()
SERVICES: dict[str, Any] = yaml.safe_load(TEXT)["services"]
DASHBOARDS = ROOT / "dashboards"


def test_the_specification_accepts_it(asked: Callable[[str, Any], Any]) -> None:
    assert asked("compose", TEXT) == ""
    assert "readonly" in asked("compose", TEXT.replace("read_only: true\n", "readonly: true\n", 1))


def test_the_exporter_is_as_its_image_and_settings_want_it() -> None:
    exporter = SERVICES["ws-guard"]
    assert exporter["read_only"] is True
    assert set(exporter["environment"]) <= set(DECLARED)
    settings = require_settings(exporter["environment"])
    (volume,) = exporter["volumes"]
    assert settings.board == volume["target"]
    assert volume["read_only"] is True
    _, port = parse_listen(image_setting("WS_GUARD_LISTEN"))
    assert exporter["ports"] == [f"127.0.0.1:{port}:{port}"]
    # The board of the comment is the one that is mounted, for the group that is set.
    assert f"--group={settings.board_group} {volume['source']}" in TEXT


def test_every_file_that_it_mounts_exists() -> None:
    mounted = [
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service["volumes"]
        if isinstance(volume, str) and volume.startswith("./")
    ]
    assert len(mounted) == 5
    for path in mounted:
        assert (ROOT / path).exists(), path


def test_services_find_each_other() -> None:
    prometheus = yaml.safe_load((DASHBOARDS / "prometheus" / "prometheus.yml").read_text())
    (scrape,) = prometheus["scrape_configs"]
    (manager,) = prometheus["alerting"]["alertmanagers"]
    provisioning = DASHBOARDS / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    provider = yaml.safe_load((provisioning / "dashboards" / "ws-guard.yaml").read_text())
    named = [*scrape["static_configs"][0]["targets"], *manager["static_configs"][0]["targets"]]
    named.append(source["datasources"][0]["url"].removeprefix("http://"))
    for address in named:
        service, port = address.split(":")
        assert f"127.0.0.1:{port}:{port}" in SERVICES[service]["ports"]
    assert prometheus["rule_files"] == ["ws-guard.rules.yml"]
    # What $__rate_interval follows is what is scraped by.
    interval = source["datasources"][0]["jsonData"]["timeInterval"]
    assert interval == prometheus["global"]["scrape_interval"]
    folder = provider["providers"][0]["options"]["path"]
    targets = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert {f"{folder}/fleet.json", f"{folder}/engine.json"} <= set(targets)
