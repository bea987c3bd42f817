"""Commands that our lines name work as they are written, whatever is on PATH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ws_guard.invocation import invocation


def test_by_name_where_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ws-guard").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invocation("status", "--board", "/a b") == "ws-guard status --board '/a b'"


def test_by_path_where_it_finds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    written = invocation("--version")
    done = subprocess.run(written, shell=True, capture_output=True, text=True, check=True)  # noqa: S602 - as a reader would
    assert written != "ws-guard --version"
    assert done.stdout.startswith("ws-guard 0.")


def test_as_a_module_where_no_script_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert invocation("verify") == f"{tmp_path}/python -m ws_guard verify"
