"""The workflows: as GitHub's schema and zizmor read them, against `.ci/run` and the Makefile."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from released import ROOT, TOOLS

pytestmark = pytest.mark.release

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
TEXTS = {path.stem: path.read_text() for path in WORKFLOWS}
LOADED: dict[str, dict[Any, Any]] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}


def judged(*command: str | Path) -> str:
    """What a judge of the environment complains of; nothing where it is content."""
    done = subprocess.run(
        [TOOLS / "bin" / command[0], *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr if done.returncode else ""


def steps(workflow: str) -> list[dict[str, Any]]:
    jobs = LOADED[workflow]["jobs"].values()
    return [step for job in jobs for step in job.get("steps", [])]


def made(text: str) -> list[str]:
    """The targets that a script makes."""
    return re.findall(r"\bmake ([a-z-]+)", re.sub("#.*", "", text))


def test_the_schema_accepts_them(tmp_path: Path) -> None:
    schema = ("check-jsonschema", "--builtin-schema", "vendor.github-workflows")
    assert judged(*schema, *WORKFLOWS) == ""
    bad = tmp_path / "ci.yml"
    bad.write_text(TEXTS["ci"].replace("timeout-minutes", "timeout-minute", 1))
    assert "timeout-minute" in judged(*schema, bad)
    dependabot = ("check-jsonschema", "--builtin-schema", "vendor.dependabot")
    assert judged(*dependabot, GITHUB / "dependabot.yml") == ""


ZIZMOR = ("zizmor", "--offline", "--no-progress", "--config", GITHUB / "zizmor.yml")


def test_zizmor_finds_nothing() -> None:
    assert judged(*ZIZMOR, GITHUB) == ""


@pytest.mark.parametrize(
    ("workflow", "good", "bad", "audit"),
    [
        ("ci", r"@[0-9a-f]{40} # v5.0.0", "@v5", "unpinned-uses"),
        (
            "ci",
            r"permissions:\n  contents: read",
            "permissions: write-all",
            "excessive-permissions",
        ),
        (
            "release",
            r"python3 -m release.notes \"\$GITHUB_REF_NAME\"\n",
            "echo ${{ github.ref_name }}\n",
            "template-injection",
        ),
    ],
)
def test_zizmor_would_find_it(
    workflow: str, good: str, bad: str, audit: str, tmp_path: Path
) -> None:
    spoilt, count = re.subn(good, bad, TEXTS[workflow])
    assert count
    path = tmp_path / ".github" / "workflows" / f"{workflow}.yml"
    path.parent.mkdir(parents=True)
    path.write_text(spoilt)
    assert audit in judged(*ZIZMOR, path)


def test_actions_are_pinned_and_say_their_release() -> None:
    used = [line for text in TEXTS.values() for line in re.findall("uses: (.+)", text)]
    own = [line for line in used if line.startswith("$/")]
    assert own == ["$/.github/workflows/ci.yml"]
    releases: dict[str, set[str]] = {}
    for line in used:
        if line not in own:
            found = re.fullmatch(r"([\w/-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", line)
            assert found, line
            releases.setdefault(found[1], set()).add(line)
    assert {name for name, lines in releases.items() if len(lines) > 1} == set()


def test_ci_runs_what_must_pass() -> None:
    wanted = made((ROOT / ".ci" / "run").read_text())
    assert len(wanted) == 5
    run = made("\n".join(step.get("run", "") for step in steps("ci")))
    assert set(wanted) <= set(run)
    # What may skip nothing there may skip nothing here.
    real = re.findall("WS_GUARD_REQUIRE_REAL=1 make ([a-z-]+)", (ROOT / ".ci" / "run").read_text())
    for job in LOADED["ci"]["jobs"].values():
        targets = made("\n".join(step.get("run", "") for step in job["steps"]))
        if set(targets) & set(real):
            assert job["env"]["WS_GUARD_REQUIRE_REAL"] == "1", job["name"]


def test_what_they_make_can_be_made() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in LOADED:
        run = made("\n".join(step.get("run", "") for step in steps(name)))
        assert set(run) <= targets, name


def test_pythons_are_those_of_the_readme() -> None:
    found = re.search(r"Python 3\.(\d+) to 3\.(\d+)", (ROOT / "README.md").read_text())
    assert found
    promised = [f"3.{minor}" for minor in range(int(found[1]), int(found[2]) + 1)]
    assert LOADED["ci"]["jobs"]["test"]["strategy"]["matrix"]["python"] == promised


def test_rights_are_named_where_they_are_used() -> None:
    """Reading, but for what publishes; and what publishes holds no secret."""
    for name, workflow in LOADED.items():
        assert workflow["permissions"] == {"contents": "read"}, name
    rights = {
        f"{name}.{key}": {
            right for right, how in job.get("permissions", {}).items() if how == "write"
        }
        for name, workflow in LOADED.items()
        for key, job in workflow["jobs"].items()
    }
    assert {job: given for job, given in rights.items() if given} == {
        "release.pypi": {"id-token"},
        "release.image": {"packages", "id-token", "attestations"},
        "release.notes": {"contents"},
    }
    assert not any("secrets." in text for text in TEXTS.values())


def test_both_machines_make_image_and_wheels() -> None:
    for job in ("dist", "image"):
        rows = LOADED["ci"]["jobs"][job]["strategy"]["matrix"]["include"]
        assert [row["machine"] for row in rows] == ["amd64", "arm64"]
    (push,) = (step for step in steps("release") if "build-push-action" in step.get("uses", ""))
    assert push["with"]["platforms"] == "linux/amd64,linux/arm64"
