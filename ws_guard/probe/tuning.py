"""Whether FlashInfer's autotuner is at work: its synthetic calls are no traffic.

`AutoTuner.is_tuning_mode` is an attribute of an instance, true within `autotune(True)` (0.6.8 to
0.7.4). A property of the same name on the class tells us when it changes, so that nobody has to ask
at every call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ws_guard.foreign import Foreign

_MODE = "is_tuning_mode"


class Tuning:
    """Follows FlashInfer's tuner once it is loaded; until then nothing tunes."""

    def __init__(self, stumbled: Callable[[object], None] = lambda _error: None) -> None:
        """`stumbled` is told of errors of ours: the tuner must not meet them."""
        self.active = False
        #: Called when tuning begins and when it ends.
        self.on_change: list[Callable[[], None]] = []
        self._stumbled = stumbled
        self._tuner_class: Any = None

    def find(self) -> None:
        """Take hold of the tuner if FlashInfer has one by now; raises if it is another kind."""
        module = sys.modules.get("flashinfer.autotuner")
        if module is None or self._tuner_class is not None:
            return
        mode = vars(module.AutoTuner.get()).get(_MODE)
        if not isinstance(mode, bool) or _MODE in vars(module.AutoTuner):
            raise TypeError(f"AutoTuner.{_MODE} is no bool of its instance")
        self._tuner_class = module.AutoTuner
        setattr(self._tuner_class, _MODE, property(self._get, self._set))
        self._note(mode)

    def leave(self) -> None:
        """Give the tuner its plain attribute back."""
        if self._tuner_class is not None and _MODE in vars(self._tuner_class):
            delattr(self._tuner_class, _MODE)
        self._tuner_class = None

    def _get(self, tuner: Foreign) -> Foreign:
        return tuner.__dict__[_MODE]

    def _set(self, tuner: Foreign, mode: Foreign) -> None:
        tuner.__dict__[_MODE] = mode
        self._note(bool(mode))

    def _note(self, active: bool) -> None:
        if active != self.active:
            self.active = active
            for told in self.on_change:
                self._tell(told)

    def _tell(self, told: Callable[[], None]) -> None:
        try:
            told()
        except Exception as error:  # noqa: BLE001 - within an assignment of FlashInfer's
            self._stumbled(error)
