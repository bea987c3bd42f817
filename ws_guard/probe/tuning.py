"""Whether FlashInfer's autotuner is at work: its synthetic calls are no traffic."""

from __future__ import annotations

import sys
from typing import Protocol


class Tuner(Protocol):
    """What is asked of FlashInfer's `AutoTuner`: true within `autotune(True)` (0.6.8 to 0.7.4)."""

    is_tuning_mode: bool


class _Idle:
    is_tuning_mode = False


class Tuning:
    """Holds FlashInfer's tuner once it is loaded; until then nothing tunes."""

    def __init__(self) -> None:
        self.tuner: Tuner = _Idle()

    def find(self) -> None:
        """Take hold of the tuner if FlashInfer has one by now; raises if it is another kind."""
        module = sys.modules.get("flashinfer.autotuner")
        if module is not None:
            tuner = module.AutoTuner.get()
            # Asked for on every call: better to fail here, where it is reported, once.
            if not isinstance(tuner.is_tuning_mode, bool):
                raise TypeError("AutoTuner.is_tuning_mode is no bool")
            self.tuner = tuner
