"""Where FlashInfer's native modules come into a process, and how their ops are replaced there.

One door: `flashinfer.jit.core.JitSpec.build_and_load`, for the spec `fmha_gen` and those of XQA.
Whoever imports flashinfer first brings the door; nothing is imported early.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from ws_guard.foreign import Foreign

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

DOOR = "flashinfer.jit.core"
SPEC_NAME = "fmha_gen"
#: What the specs of XQA's modules are named by: there is one for each kind of call.
_XQA_SPEC_PREFIX = "xqa_"
_LOADER_FUNCTION = "get_trtllm_gen_fmha_module"


def is_instrumented(spec_name: str) -> bool:
    """Whether a JIT spec builds a module with native ops of ours."""
    return spec_name == SPEC_NAME or spec_name.startswith(_XQA_SPEC_PREFIX)


class PostImport:
    """Calls back once a module has been imported, then steps out of the way."""

    def __init__(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._callback = callback
        self._searching = False

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002 - the finder protocol
        target: object = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with a loader that calls back afterwards."""
        if fullname != self._name or self._searching:
            return None
        from importlib.util import find_spec

        self._searching = True
        try:
            spec = find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            self._call_back_after(spec.loader)
        return spec

    def _call_back_after(self, loader: Foreign) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # Another one that waits for the module may have taken both away already.
            loader.__dict__.pop("exec_module", None)
            load(module)
            self.remove()
            self._callback(module)

        loader.exec_module = exec_module

    def add(self) -> None:
        """Stand before the other finders."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Leave the import system as it was."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class Door:
    """The patched `JitSpec.build_and_load`."""

    def __init__(self, core: ModuleType, on_load: Callable[[Any], object]) -> None:
        self._spec_class = core.JitSpec
        # The function as the class holds it, so that closing puts back the identical object.
        self._original = vars(self._spec_class)["build_and_load"]
        original = self._original

        @functools.wraps(original)
        def build_and_load(spec: Foreign, *args: Foreign, **kwargs: Foreign) -> Foreign:
            module = original(spec, *args, **kwargs)
            if is_instrumented(spec.name):
                on_load(module)
            return module

        self._patched = build_and_load
        self._spec_class.build_and_load = build_and_load

    def close(self) -> bool:
        """Put the original back; False if somebody else has patched over ours since."""
        if vars(self._spec_class).get("build_and_load") is not self._patched:
            return False
        self._spec_class.build_and_load = self._original
        return True


def loaded_modules() -> list[Any]:
    """Native modules that FlashInfer loaded before us.

    The garbage collector knows them all, also those that the wrappers keep to themselves. What an
    engine has frozen (`gc.freeze`) it does not tell: the cached loaders are asked as well.
    """
    # Garbage holds native functions too, but will never call them: see `other_holders`.
    gc.collect()
    native_class = getattr(sys.modules.get("tvm_ffi"), "Module", None)
    modules = [found for found in gc.get_objects() if type(found) is native_class]
    for name, module in list(sys.modules.items()):
        if name.startswith("flashinfer") and isinstance(module, ModuleType):
            loader: Any = vars(module).get(_LOADER_FUNCTION)
            cached = getattr(loader, "cache_info", None)
            if cached is not None and cached().currsize:
                modules.append(loader())
    return list({id(module): module for module in modules}.values())


def other_holders(function: object, owner: dict[str, Any]) -> int:
    """How many objects besides its module hold a native function: attributes, closures, lists."""
    holders = gc.get_referrers(function)
    return sum(1 for h in holders if h is not owner and not isinstance(h, FrameType))
