"""Rules and runbook: tested by promtool, every alert with a section that holds."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from places import ROOT, RULES
from servers import exporter, fetch

from ws_guard.board import Board

sys.path.insert(0, str(ROOT / "tests" / "exporter"))
from slot_worker import CRASH_PLAN, SlotWorker

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.observability

RULE_TESTS = RULES.with_name("ws-guard.rules_test.yml")
RUNBOOK = ROOT / "dashboards" / "runbook.md"
#: Names and severities are a contract.
SEVERITIES = {
    "WsGuardPlannedOverflow": "critical",
    "WsGuardPlanExceeded": "warning",
    "WsGuardMarginLow": "warning",
    "WsGuardOverflow": "critical",
    "WsGuardOverrun": "critical",
    "WsGuardWorkerGone": "critical",
    "WsGuardExporterDown": "warning",
    "WsGuardContract": "warning",
    "WsGuardProbeErrors": "warning",
    "WsGuardSizesDiffer": "warning",
}


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """Every rule of a kind by its name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


def rule_tests() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    return found


def test_promtool_is_content(judge: Callable[..., str]) -> None:
    folder = RULES.parent
    assert "14 rules found" in judge("promtool", "check", "rules", RULES)
    judge("promtool", "test", "rules", RULE_TESTS.name, cwd=str(folder))
    judge("promtool", "check", "config", "prometheus.yml", cwd=str(folder))
    judge("amtool", "check-config", folder / "alertmanager.yml")


def test_promtool_would_complain(judge: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / RULES.name).write_text(RULES.read_text().replace("< 0.1 #", "< 0.01 #"))
    (tmp_path / RULE_TESTS.name).write_text(RULE_TESTS.read_text())
    with pytest.raises(AssertionError, match="WsGuardMarginLow"):
        judge("promtool", "test", "rules", RULE_TESTS.name, cwd=str(tmp_path))


def test_no_rule_is_untested() -> None:
    told = [each for test in rule_tests() for each in test.get("alert_rule_test", [])]
    firing = {each["alertname"] for each in told if each["exp_alerts"]}
    silent = {each["alertname"] for each in told if not each["exp_alerts"]}
    assert firing == silent == set(rules("alert"))
    asked = [each for test in rule_tests() for each in test.get("promql_expr_test", [])]
    recorded = {each["expr"] for each in asked if each.get("exp_samples")}
    assert set(rules("record")) <= recorded


def test_alerts_say_what_an_engineer_needs() -> None:
    alerts = rules("alert")
    assert {name: rule["labels"]["severity"] for name, rule in alerts.items()} == SEVERITIES
    for name, rule in alerts.items():
        assert "for" in rule, name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
        assert "job=" not in rule["expr"].replace('job=~".*ws[-_]guard.*"', ""), name


def headings(text: str) -> set[str]:
    """Anchors as they are made of headings."""
    found = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?s)```.*?```", "", text))
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in found}


def test_runbook_has_a_section_for_every_alert_and_every_link_an_end() -> None:
    text = RUNBOOK.read_text()
    for name, rule in rules("alert").items():
        url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert url.endswith("/runbook.md")
        assert anchor in headings(text), name
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"**{rule['labels']['severity']}**" in section, name
        for part in ("- **Means**", "- **Users see**", "- **Do**"):
            assert section.count(part) == 1, (name, part)
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= headings(text)


def commands() -> list[str]:
    """Lines of the runbook's code blocks, without comments."""
    blocks = re.findall(r"(?s)```sh\n(.*?)```", RUNBOOK.read_text())
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return list(dict.fromkeys(filter(None, lines)))


def ours() -> list[list[str]]:
    """Calls of `ws-guard`, wherever they stand in a line."""
    found = [re.search(r"(?:^|-- |\| )ws-guard (.*)", line) for line in commands()]
    return [shlex.split(match[1]) for match in found if match]


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A board with a worker that overflowed and died."""
    path = tmp_path / "board"
    worker = SlotWorker(Board(str(path)), planned=[CRASH_PLAN])
    worker.overflow(12_288)
    worker.die()
    return path


@pytest.mark.parametrize("arguments", ours(), ids=" ".join)
def test_its_commands_run_as_written(arguments: list[str], crashed: Path) -> None:
    told = [word.replace("/board", str(crashed)) for word in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "ws_guard", *told],
        input="Buffer overflow when allocating memory for trtllm_gen_softmax_workspace with size "
        "1611661312 and alignment 16, but only 404750336 bytes available in AlignedAllocator.\n",
        env={**os.environ, "WS_GUARD_BOARD": str(crashed), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    # Yes or no; neither bad usage nor an internal error.
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout


def test_its_addresses_answer(crashed: Path) -> None:
    urls = {
        url for line in commands() for url in re.findall(r"http://127.0.0.1:19456([^' ]*)", line)
    }
    assert len(urls) >= 4
    with exporter(crashed) as address:
        for path in urls:
            status, body = fetch(f"http://{address}{path}")
            assert status in (200, 503), path
            assert body
        _, verbose = fetch(f"http://{address}/readyz?verbose")
    assert "set VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=2561671168" in verbose


def test_its_containers_and_labels_are_those_of_the_manifests() -> None:
    manifest = (ROOT / "dashboards" / "kubernetes" / "deployment.yaml").read_text()
    pod = yaml.safe_load(manifest)["spec"]["template"]
    names = {each["name"] for each in pod["spec"]["initContainers"] + pod["spec"]["containers"]}
    assert set(re.findall(r" -c ([\w-]+)", "\n".join(commands()))) <= names
    assert pod["metadata"]["labels"]["monitoring"] == "ws-guard"


def test_metrics_of_the_rules_exist() -> None:
    """A renamed metric would leave a rule that never fires."""
    from ws_guard.exporter.metrics import METRICS, PREFIX

    known = {PREFIX + metric.name for metric in METRICS}
    asked = set(re.findall(r"\bws_guard_\w+", json.dumps(list(rules("alert").values()))))
    asked |= set(re.findall(r"\bws_guard_\w+", json.dumps(list(rules("record").values()))))
    recorded = {word for name in rules("record") for word in re.findall(r"\bws_guard_\w+", name)}
    assert asked - recorded <= known
