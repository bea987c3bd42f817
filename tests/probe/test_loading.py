"""The door through which native modules come, and the wait for FlashInfer's import."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ws_guard.probe.loading import Door, PostImport, loaded_modules, other_holders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "ws_guard_test_package.jit.core"


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source of a module `ws_guard_test_package.jit.core` that was never imported."""
    folder = tmp_path / "ws_guard_test_package" / "jit"
    folder.mkdir(parents=True)
    for directory in (folder.parent, folder):
        (directory / "__init__.py").touch()
    (folder / "core.py").write_text("VALUE = 7\n")
    (folder / "other.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder / "core.py"
    for name in [name for name in sys.modules if name.startswith("ws_guard_test_package")]:
        del sys.modules[name]


@pytest.fixture
def waiting() -> Iterator[tuple[PostImport, list[ModuleType]]]:
    """A finder that waits for the module, and what it was called back with."""
    called: list[ModuleType] = []
    finder = PostImport(NAME, called.append)
    finder.add()
    yield finder, called
    finder.remove()


@pytest.mark.usefixtures("core")
def test_several_may_wait_for_the_same_module(
    waiting: tuple[PostImport, list[ModuleType]],
) -> None:
    """A plugin's install and that of `ws-guard run`."""
    _, called = waiting
    more: list[ModuleType] = []
    finders = [PostImport(NAME, more.append) for _ in range(2)]
    for finder in finders:
        finder.add()
    module = importlib.import_module(NAME)
    assert (called, more) == ([module], [module, module])
    assert not {*finders} & {*sys.meta_path}
    assert "exec_module" not in vars(module.__spec__.loader)


@pytest.mark.usefixtures("core")
def test_calls_back_once_after_the_import_and_steps_aside(
    waiting: tuple[PostImport, list[ModuleType]],
) -> None:
    finder, called = waiting
    importlib.import_module("ws_guard_test_package.jit.other")
    assert called == []
    module: Any = importlib.import_module(NAME)
    assert called == [module]
    assert module.VALUE == 7
    assert finder not in sys.meta_path
    assert "exec_module" not in vars(module.__spec__.loader)
    importlib.reload(module)
    assert called == [module]


def test_import_that_fails_may_be_tried_again(
    core: Path, waiting: tuple[PostImport, list[ModuleType]]
) -> None:
    _, called = waiting
    core.write_text("import no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module(NAME)
    assert called == []
    core.write_text("VALUE = 8888\n")
    importlib.invalidate_caches()
    module = importlib.import_module(NAME)
    assert called == [module]


def test_module_that_is_not_there(waiting: tuple[PostImport, list[ModuleType]]) -> None:
    _, called = waiting
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    assert called == []


@pytest.mark.usefixtures("core")
def test_removed_finder_leaves_the_import_system_as_it_was() -> None:
    before = list(sys.meta_path)
    called: list[ModuleType] = []
    finder = PostImport(NAME, called.append)
    finder.add()
    assert sys.meta_path != before
    finder.remove()
    finder.remove()
    assert sys.meta_path == before
    importlib.import_module(NAME)
    assert called == []


# -- the door --------------------------------------------------------------------------------------


@pytest.fixture
def jit() -> ModuleType:
    """A `core` whose specs load as told, with positional and keyword arguments."""

    class JitSpec:
        def __init__(self, name: str) -> None:
            self.name = name

        def build_and_load(self, *args: object, **kwargs: object) -> object:
            """As documented."""
            return SimpleNamespace(name=self.name, args=args, kwargs=kwargs)

    module = ModuleType("core")
    vars(module)["JitSpec"] = JitSpec
    return module


def test_door_hands_on_what_is_loaded_for_fmha_gen(jit: Any) -> None:
    loaded: list[Any] = []
    door = Door(jit, loaded.append)
    other = jit.JitSpec("batch_decode").build_and_load()
    module = jit.JitSpec("fmha_gen").build_and_load(1, verbose=True)
    assert loaded == [module]
    assert other.name == "batch_decode"
    assert (module.args, module.kwargs) == ((1,), {"verbose": True})
    assert jit.JitSpec.build_and_load.__doc__ == "As documented."
    assert door.close()


def test_closed_door_is_the_identical_function(jit: Any) -> None:
    before = vars(jit.JitSpec)["build_and_load"]
    door = Door(jit, lambda _module: None)
    assert vars(jit.JitSpec)["build_and_load"] is not before
    assert door.close()
    assert vars(jit.JitSpec)["build_and_load"] is before


def test_door_patched_over_stays_theirs(jit: Any) -> None:
    door = Door(jit, lambda _module: None)
    theirs = jit.JitSpec.build_and_load = functools.partialmethod(jit.JitSpec.build_and_load)
    assert not door.close()
    assert vars(jit.JitSpec)["build_and_load"] is theirs


# -- what was loaded before ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [None, object(), SimpleNamespace(get_trtllm_gen_fmha_module=None), ModuleType("empty")],
    ids=["None", "object", "namespace", "empty"],
)
def test_strange_modules_are_passed_over(entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = loaded_modules()
    monkeypatch.setitem(sys.modules, "flashinfer.strange", entry)
    assert loaded_modules() == before


def test_module_in_a_cached_loader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    native = SimpleNamespace()
    loader = functools.cache(lambda: native)
    for name in ("flashinfer.one", "flashinfer.alias"):
        module = ModuleType(name)
        vars(module)["get_trtllm_gen_fmha_module"] = loader
        monkeypatch.setitem(sys.modules, name, module)
    # Not loaded before: nor is it by us.
    assert native not in loaded_modules()
    loader()
    assert [found for found in loaded_modules() if found is native] == [native]


class Backend:
    """An object that keeps a native function, as FlashInfer's backends do."""

    def __init__(self, function: object) -> None:
        self.run = function


def test_every_holder_but_the_module_counts() -> None:
    function = lambda: None  # noqa: E731 - held by the names of this test alone
    module = {"op": function}
    assert other_holders(function, module) == 0
    holders = [Backend(function), functools.partial(function), {"run": function}]
    assert other_holders(function, module) == len(holders)
