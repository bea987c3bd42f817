"""Native ops replaced inside the module objects that FlashInfer loaded, and put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ws_guard.foreign import NativeModule

from .loading import other_holders

NativeFunction = Callable[..., Any]


class _Patch(NamedTuple):
    module: Any
    op: str
    native: NativeFunction
    probe: NativeFunction


class Patches:
    """The probes in place. A native module keeps functions it was asked for in its `__dict__`."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []

    def apply(
        self, module: NativeModule, op: str, make: Callable[[NativeFunction], NativeFunction]
    ) -> int:
        """Replace one op of a module; returns how many others hold the native function already."""
        held = module.__dict__.get(op)
        # No generator over `held`: its cell would count as another holder.
        for patch in self._patches:
            if held is patch.probe:
                return 0
        native = getattr(module, op)
        others = 0 if held is None else other_holders(native, module.__dict__)
        probe = make(native)
        self._patches.append(_Patch(module, op, native, probe))
        setattr(module, op, probe)
        return others

    def restore(self) -> None:
        """Put every native function back where a probe of ours still stands."""
        for module, op, native, probe in self._patches:
            if module.__dict__.get(op) is probe:
                setattr(module, op, native)
        self._patches.clear()
