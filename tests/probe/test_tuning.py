"""FlashInfer's autotuner, as the probe sees it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from ws_guard.probe.tuning import Tuning

MODULE = "flashinfer.autotuner"


def test_nothing_tunes_before_flashinfer_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    tuning = Tuning()
    tuning.find()
    assert tuning.active is False
    assert MODULE not in sys.modules


def test_follows_the_real_autotuner() -> None:
    autotuner = pytest.importorskip(MODULE)
    tuning = Tuning()
    tuning.find()
    told: list[bool] = []
    tuning.on_change.append(lambda: told.append(tuning.active))
    tuner = autotuner.AutoTuner.get()
    try:
        seen = [tuning.active]
        with autotuner.autotune(True):
            seen.append(tuning.active)
            assert tuner.is_tuning_mode is True
            with autotuner.autotune(True):
                pass
            seen.append(tuning.active)
        seen.append(tuning.active)
        with autotuner.autotune(False):
            seen.append(tuning.active)
    finally:
        tuning.leave()
    assert seen == [False, True, True, False, False]
    assert told == [True, False]
    # FlashInfer's own attribute is a plain one again.
    assert "is_tuning_mode" not in vars(autotuner.AutoTuner)
    assert tuner.is_tuning_mode is False


def test_follows_a_tuner_that_is_at_work_already() -> None:
    autotuner = pytest.importorskip(MODULE)
    tuning = Tuning()
    try:
        with autotuner.autotune(True):
            tuning.find()
            tuning.find()
            assert tuning.active is True
        assert tuning.active is False
    finally:
        tuning.leave()
    with autotuner.autotune(True):
        assert tuning.active is False


def test_error_of_ours_does_not_reach_the_tuner() -> None:
    autotuner = pytest.importorskip(MODULE)
    errors: list[object] = []
    tuning = Tuning(errors.append)
    tuning.on_change.append(lambda: 1 / 0)
    tuning.find()
    try:
        with autotuner.autotune(True):
            assert autotuner.AutoTuner.get().is_tuning_mode is True
    finally:
        tuning.leave()
    assert [type(error) for error in errors] == [ZeroDivisionError] * 2


@pytest.mark.parametrize(
    "tuner",
    [SimpleNamespace(), SimpleNamespace(is_tuning_mode=lambda: True)],
    ids=["none", "other"],
)
def test_tuner_of_another_kind_is_told_and_not_used(
    tuner: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(MODULE)
    vars(module)["AutoTuner"] = SimpleNamespace(get=lambda: tuner)
    monkeypatch.setitem(sys.modules, MODULE, module)
    tuning = Tuning()
    with pytest.raises(TypeError, match="is_tuning_mode is no bool"):
        tuning.find()
    assert tuning.active is False
    tuning.leave()
