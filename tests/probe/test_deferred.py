"""The probe that comes with the first native module, and stays away from everybody else."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from ws_guard.probe import deferred

if TYPE_CHECKING:
    from collections.abc import Callable


class JitSpec:
    """FlashInfer's, as far as the probe knows it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build_and_load(self, *args: object) -> tuple[object, ...]:
        """As documented."""
        return (self.name, *args)


@pytest.fixture
def spec_class() -> type[Any]:
    return type("JitSpec", (), dict(vars(JitSpec)))


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What `install` was called with."""
    calls: list[object] = []
    monkeypatch.setattr(deferred, "install", lambda **given: calls.append(given))
    monkeypatch.setattr(deferred, "is_installed", lambda: bool(calls))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return calls


@pytest.fixture
def wait(spec_class: type[Any]) -> Callable[[], None]:
    """What happens once FlashInfer's JIT core is imported."""
    core = ModuleType("core")
    vars(core)["JitSpec"] = spec_class
    return lambda: deferred.wait_for_native_module()._callback(core)


def test_only_the_native_module_attaches(
    spec_class: type[Any], wait: Callable[[], None], attached: list[object]
) -> None:
    before = vars(spec_class)["build_and_load"]
    wait()
    assert spec_class.build_and_load.__doc__ == "As documented."
    assert spec_class("batch_decode").build_and_load(1) == ("batch_decode", 1)
    assert attached == []
    assert spec_class("fmha_gen").build_and_load(2) == ("fmha_gen", 2)
    assert attached == [{"rank": None}]
    assert vars(spec_class)["build_and_load"] is before


def test_the_first_load_goes_through_the_probes_own_door(
    spec_class: type[Any], wait: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(**_: object) -> None:
        original = spec_class.build_and_load
        spec_class.build_and_load = lambda spec, *args: ("door", *original(spec, *args))

    monkeypatch.setattr(deferred, "install", install)
    wait()
    assert spec_class("fmha_gen").build_and_load() == ("door", "fmha_gen")


def test_somebody_who_patched_over_us_stays(
    spec_class: type[Any], wait: Callable[[], None], attached: list[object]
) -> None:
    wait()
    ours = spec_class.build_and_load
    theirs = spec_class.build_and_load = functools.wraps(ours)(
        lambda spec, *args: ("theirs", *ours(spec, *args))
    )
    for _ in range(2):
        assert spec_class("fmha_gen").build_and_load() == ("theirs", "fmha_gen")
    assert len(attached) == 1
    assert vars(spec_class)["build_and_load"] is theirs


def test_threads_that_came_before_it_stepped_aside(
    spec_class: type[Any], wait: Callable[[], None], attached: list[object]
) -> None:
    wait()
    ours = spec_class.build_and_load
    assert ours(spec_class("fmha_gen")) == ("fmha_gen",)
    assert ours(spec_class("fmha_gen")) == ("fmha_gen",)
    assert len(attached) == 1


def test_install_that_fails_is_a_line(
    spec_class: type[Any],
    wait: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def install(**_: object) -> None:
        raise OSError("no such thing")

    monkeypatch.setattr(deferred, "install", install)
    wait()
    assert spec_class("fmha_gen").build_and_load() == ("fmha_gen",)
    (line,) = caplog.messages
    assert line.endswith("not attached: OSError: no such thing")


def test_jit_core_of_another_kind_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    deferred.wait_for_native_module()._callback(sys)
    (line,) = caplog.messages
    assert "flashinfer.jit.core has no JitSpec.build_and_load ('JitSpec')" in line
