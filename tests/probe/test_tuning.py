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
    assert tuning.tuner.is_tuning_mode is False
    assert MODULE not in sys.modules


def test_follows_the_real_autotuner() -> None:
    autotuner = pytest.importorskip(MODULE)
    tuning = Tuning()
    tuning.find()
    seen = [tuning.tuner.is_tuning_mode]
    with autotuner.autotune(True):
        seen.append(tuning.tuner.is_tuning_mode)
        with autotuner.autotune(True):
            pass
        seen.append(tuning.tuner.is_tuning_mode)
    seen.append(tuning.tuner.is_tuning_mode)
    with autotuner.autotune(False):
        seen.append(tuning.tuner.is_tuning_mode)
    assert seen == [False, True, True, False, False]


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
    with pytest.raises((AttributeError, TypeError), match="is_tuning_mode"):
        tuning.find()
    assert tuning.tuner.is_tuning_mode is False
