"""Puts probes into the native modules that FlashInfer loads, and takes them out again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ws_guard.foreign import NativeModule
from ws_guard.sizing import XQA_OPS

from .calls import NativeFunction
from .ledger import Ledger
from .loading import DOOR, Door, PostImport, loaded_modules
from .native_op import instrument, positions_of
from .parts import Parts
from .patches import Patches
from .recorder import Recorder
from .saying import say
from .xqa_op import instrument_xqa, xqa_positions_of

if TYPE_CHECKING:
    from ws_guard.contract import Contract, XqaContract


class Instruments:
    """The probes of a process, by the contract of its FlashInfer."""

    def __init__(
        self,
        contract: Contract,
        recorder: Recorder,
        parts: Parts,
        report: Callable[[str], None],
    ) -> None:
        self._contract = contract
        self._recorder = recorder
        self._parts = parts
        self._report = report
        self._xqa: XqaContract | None = None
        self._ledgers: dict[str, Ledger] = {}
        self._patches = Patches()
        self._door: Door | None = None
        self._post_import: PostImport | None = None

    def enter(self) -> None:
        """Instrument what is loaded, and whatever will be."""
        core = sys.modules.get(DOOR)
        if core is None:
            self._post_import = PostImport(DOOR, self._open_door)
            self._post_import.add()
            return
        self._open_door(core)
        missed = sum(self._instrument(module) for module in self._loaded_before())
        if missed:
            self._report(
                f"installed too late for {missed} objects that hold native functions already: "
                "their calls are not seen; install ws_guard before the engine's first step"
            )

    def leave(self) -> None:
        """Restore the identical native functions and the import system."""
        if self._post_import is not None:
            self._post_import.remove()
        if self._door is not None and not self._door.close():
            say("JitSpec.build_and_load was patched again")
        self._door = None
        self._parts.tuning.leave()
        self._patches.restore()

    def _loaded_before(self) -> list[Any]:
        try:
            return loaded_modules()
        except Exception as error:  # noqa: BLE001 - a loader of FlashInfer's that is not as we know
            self._report(f"native modules loaded before are not seen: {error!r}")
            return []

    def _open_door(self, core: ModuleType) -> None:
        try:
            self._door = Door(core, self._instrument)
        except Exception as error:  # noqa: BLE001 - called while the engine imports FlashInfer
            self._report(f"{DOOR} has no JitSpec.build_and_load ({error}): no call is seen")

    def _instrument(self, module: NativeModule) -> int:
        """Put probes into a native module; returns how many objects hold its functions already."""
        missed = 0
        self._find_tuner()
        try:
            for op in self._contract.signatures:
                where = positions_of(self._contract, op)
                missed += self._patch(module, op, partial(instrument, where=where))
            if any(getattr(module, op, None) is not None for op in XQA_OPS.values()):
                missed += self._instrument_xqa(module, self._xqa_contract())
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            self._report(f"{type(error).__name__} while instrumenting: {error}")
        return missed

    def _instrument_xqa(self, module: NativeModule, contract: XqaContract) -> int:
        missed = 0
        for op in contract.signatures:
            where = xqa_positions_of(contract, op)
            missed += self._patch(module, op, partial(instrument_xqa, where=where))
        for op, reason in contract.reasons.items():
            self._report(f"calls of {op} are not seen, its source is not understood: {reason}")
        return missed

    def _xqa_contract(self) -> XqaContract:
        """Read once, and only where XQA is used."""
        if self._xqa is None:
            from ws_guard.contract import installed_xqa

            self._xqa = installed_xqa()
        return self._xqa

    def _patch(self, module: NativeModule, op: str, make: Callable[..., NativeFunction]) -> int:
        if getattr(module, op, None) is None:
            return 0
        if op not in self._ledgers:
            self._ledgers[op] = Ledger(self._recorder, op, self._parts)
        return self._patches.apply(module, op, partial(make, ledger=self._ledgers[op]))

    def _find_tuner(self) -> None:
        try:
            self._parts.tuning.find()
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            self._report(f"FlashInfer's autotuner is not understood, its calls count: {error!r}")
