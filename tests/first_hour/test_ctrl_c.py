"""Ctrl-C while a command starts, sent by a package at the very moment in which it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRESSED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise ImportError\n"
PLAN = "plan --heads 64 --max-num-batched-tokens 1 --sweep tokens=1,2 --plot x.png"


def interrupted(package: str, command: str, place: Path, before: str = "") -> tuple[int, str, str]:
    """Code and both streams of a command that is interrupted while it imports a package."""
    (place / f"{package}.py").write_text(PRESSED)
    done = subprocess.run(
        ["sh", "-c", f"{before} exec {sys.executable} -m ws_guard {command}"],
        env={**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("typer", "--version"),
        ("matplotlib", PLAN),
        ("fastapi", "serve"),
        ("uvicorn", "run -- echo started"),
        ("rich", "status"),
        ("json", "demo"),
    ],
)
def test_ctrl_c_ends_a_start_without_a_word(package: str, command: str, tmp_path: Path) -> None:
    assert interrupted(package, command, tmp_path) == (128 + 2, "", "")


def test_who_has_it_ignored_is_not_interrupted(tmp_path: Path) -> None:
    """As a shell has it in jobs in the background, if it has no job control."""
    code, _, said = interrupted("matplotlib", PLAN, tmp_path, before="trap '' INT;")
    assert (code, said.count("\n")) == (2, 1)
    assert "--plot needs matplotlib" in said
