"""What the probe makes of an installation that is there, absent, or not to be understood."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from ws_guard.probe.verdict import judge_installation


@pytest.mark.usefixtures("flashinfer")
def test_an_installation_that_is_understood() -> None:
    contract, verdict, reason = judge_installation()
    assert contract is not None
    assert (verdict, reason) == (contract.verdict, contract.reason) == ("verified", "")


def test_no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    assert judge_installation() == (None, "not_installed", "flashinfer is not installed")


def test_a_module_of_that_name_that_nobody_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python itself refuses to say where it comes from."""
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    contract, verdict, reason = judge_installation()
    assert (contract, verdict) == (None, "mismatch")
    assert reason.startswith("ValueError: flashinfer.__spec__ is ")
