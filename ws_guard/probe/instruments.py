"""Puts probes into the native modules that FlashInfer loads, and takes them out again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ws_guard.contract import Contract
from ws_guard.sizing import OPS

from .graphs import Graphs
from .guard import Guard
from .ledger import Ledger
from .loading import DOOR, Door, PostImport, loaded_modules
from .native_op import instrument, positions_of
from .patches import Patches
from .recorder import Recorder, say
from .split import Splitter
from .tuning import Tuning


class Instruments:
    """The probes of a process, by the contract of its FlashInfer."""

    def __init__(
        self,
        contract: Contract,
        recorder: Recorder,
        graphs: Graphs,
        on_overflow: str,
        report: Callable[[str], None],
    ) -> None:
        self._contract = contract
        self._recorder = recorder
        self._graphs = graphs
        self._report = report
        self._tuning = Tuning(recorder.stumbled)
        # Only decode finds each row's offset by itself: see `split`.
        decode = contract.signatures.get(OPS["decode"])
        splitters = {OPS["decode"]: Splitter(decode)} if decode else {}
        self._guard = Guard(recorder, on_overflow, splitters)
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
        self._tuning.leave()
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

    def _instrument(self, module: Any) -> int:  # noqa: ANN401 - a native module
        """Put probes into a native module; returns how many objects hold its functions already."""
        missed = 0
        self._find_tuner()
        try:
            for op in self._contract.signatures:
                missed += self._instrument_op(module, op)
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            self._report(f"{type(error).__name__} while instrumenting: {error}")
        return missed

    def _find_tuner(self) -> None:
        try:
            self._tuning.find()
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            self._report(f"FlashInfer's autotuner is not understood, its calls count: {error!r}")

    def _instrument_op(self, module: Any, op: str) -> int:  # noqa: ANN401 - a native module
        if getattr(module, op, None) is None:
            return 0
        if op not in self._ledgers:
            self._ledgers[op] = Ledger(self._recorder, op, self._tuning, self._graphs, self._guard)
        ledger, where = self._ledgers[op], positions_of(self._contract, op)
        return self._patches.apply(module, op, lambda native: instrument(native, where, ledger))
