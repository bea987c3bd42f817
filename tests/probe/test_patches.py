"""Replacing functions in native modules, and putting them back."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import pytest

from ws_guard.probe.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = Callable[..., object]

OP = "trtllm_paged_attention_decode"


class LazyModule(ModuleType):
    """A module that finds a function at its first use and keeps it, as tvm_ffi's do."""

    def __getattr__(self, name: str) -> Function:
        def native() -> str:
            return name

        setattr(self, name, native)
        return native


def probe_of(native: Function) -> Function:
    return lambda: ("probed", native())


def test_replaces_and_restores_the_identical_function() -> None:
    module, patches = LazyModule("native"), Patches()
    native = getattr(module, OP)
    other = module.get_library_path
    assert patches.apply(module, OP, probe_of) == 0
    assert getattr(module, OP)() == ("probed", OP)
    assert module.get_library_path is other
    patches.restore()
    assert getattr(module, OP) is native


def test_function_that_nobody_asked_for_yet() -> None:
    module, patches = LazyModule("native"), Patches()
    assert patches.apply(module, OP, probe_of) == 0
    assert getattr(module, OP)() == ("probed", OP)
    patches.restore()
    assert getattr(module, OP)() == OP


def test_module_seen_twice_is_replaced_once() -> None:
    module, patches = LazyModule("native"), Patches()
    for _ in range(2):
        assert patches.apply(module, OP, probe_of) == 0
    assert getattr(module, OP)() == ("probed", OP)


def test_who_holds_the_function_already_is_counted() -> None:
    module, patches = LazyModule("native"), Patches()
    holders = [getattr(module, OP)], {"run": getattr(module, OP)}
    assert patches.apply(module, OP, probe_of) == len(holders)


def test_what_others_put_over_the_probe_stays() -> None:
    module, patches = LazyModule("native"), Patches()
    patches.apply(module, OP, probe_of)
    theirs = probe_of(getattr(module, OP))
    setattr(module, OP, theirs)
    patches.restore()
    assert getattr(module, OP) is theirs


def test_module_that_refuses_is_left_as_it_is() -> None:
    class Sealed(ModuleType):
        def __setattr__(self, name: str, value: object) -> NoReturn:
            raise AttributeError(f"{name} is read-only")

    module, patches = Sealed("native"), Patches()
    native = vars(module)[OP] = lambda: OP
    with pytest.raises(AttributeError, match="read-only"):
        patches.apply(module, OP, probe_of)
    patches.restore()
    assert getattr(module, OP) is native
