"""What mutmut leaves alive in a package of one function, against what a document explains."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from released import TOOLS

from release import mutants

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.release

CODE = "def larger(one: int, other: int) -> bool:\n    return one > other\n"
# Nobody asks about two that are the same.
TESTS = """
from ws_guard.sizing import larger

def test_larger():
    assert larger(2, 1)
    assert not larger(1, 2)
"""
SETTINGS = """
[tool.mutmut]
source_paths = ["ws_guard"]
only_mutate = ["ws_guard/sizing/*"]
pytest_add_cli_args_test_selection = ["tests"]
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which mutmut has run."""
    tree = tmp_path_factory.mktemp("tree")
    for path, text in {
        "ws_guard/__init__.py": "",
        "ws_guard/sizing/__init__.py": CODE,
        "tests/test_larger.py": TESTS,
        "pyproject.toml": SETTINGS,
    }.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    done = subprocess.run(
        [TOOLS / "bin" / "mutmut", "run"], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tree


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("nothing", ["not explained: larger: return one >= other"]),
        ("| `return one >= other` | two that are the same |", []),
        (
            "| `return one >= other` | why |\n| `return one < other` | why |",
            ["noticed by now: return one < other"],
        ),
    ],
)
def test_survivors_and_explanations_are_the_same(
    document: str,
    told: list[str],
    tried: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    explanations = tmp_path / "MUTATION.md"
    explanations.write_text(document)
    monkeypatch.chdir(tried)
    assert mutants.main([str(explanations)]) == (1 if told else 0)
    *problems, summary = capsys.readouterr().out.splitlines()
    assert problems == told
    assert summary.endswith(f"1 survived, {len(told)} problems")


def test_without_a_run_there_is_nothing_to_be_content_with(tmp_path: Path) -> None:
    explanations = tmp_path / "MUTATION.md"
    explanations.touch()
    done = subprocess.run(
        [sys.executable, "-m", "release.mutants", explanations],
        cwd=tmp_path,
        env={"PYTHONPATH": str(TOOLS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "0 changes, 0 survived, 0 problems\n")
