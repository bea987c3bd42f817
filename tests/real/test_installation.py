"""The probe installed early and late, and uninstalled, under real FlashInfer."""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from flashinfer_calls import MIB, PUBLIC_CALLS, Shape, workspace
from native_modules import DECODE, native_decode_module, native_modules
from probed_board import error_of, probed, slots

from ws_guard.probe import install

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


EARLY = """
import sys
from pathlib import Path
from ws_guard.probe import install

board, library = sys.argv[1:]
finders = list(sys.meta_path)
install(board=board)
print(sorted({"torch", "flashinfer", "tvm_ffi"} & set(sys.modules)))

from flashinfer_calls import MIB, PUBLIC_CALLS, Shape, workspace
from probed_board import slots
from ws_guard.launcher import on_cpu

with on_cpu(Path(library)):
    PUBLIC_CALLS["sparse_mla"].build(Shape(5, lse=True), workspace(64 * MIB))()
print(sys.meta_path == finders)
print([row.shape.batch for row in slots(board)[0].rows])

import flashinfer.jit.core as core
print("exec_module" in vars(core.__spec__.loader))
print(sorted({"fastapi", "prometheus_client", "typer", "rich"} & set(sys.modules)))
"""


def test_installed_before_flashinfer_is_imported(
    native_library: Path, board: str, run_under: Callable[..., str]
) -> None:
    out = run_under("installed", "-c", EARLY, board, str(native_library))
    assert out.splitlines() == ["[]", "True", "[5]", "False", "[]"]
    # The process ended in good order: its slot is gone.
    assert os.listdir(board) == []


@pytest.mark.usefixtures("on_cpu")
def test_late_install_sees_every_module_that_is_loaded(board: str) -> None:
    calls = [
        PUBLIC_CALLS[name].build(Shape(4, 32), workspace(64 * MIB))
        for name in ("sparse_mla", "decode", "context", "decode_wrapper", "prefill_wrapper")
    ]
    for call in calls:
        call()
    # mla, decode and prefill keep a module each, and the two wrappers one each to themselves.
    assert len(native_modules()) >= 5
    with probed(board):
        for call in calls:
            call()
        (slot,) = slots(board)
        assert len(slot.calls) == len(calls)
        assert slot.document["problems"] == []


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("keep", ["attribute", "closure", "partial"])
def test_function_taken_before_install_is_reported(
    keep: str, board: str, caplog: pytest.LogCaptureFixture
) -> None:
    PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))()
    holder = hold(keep)
    with caplog.at_level(logging.WARNING, "ws_guard"), probed(board):
        (slot,) = slots(board)
    assert holder is not None
    (problem,) = slot.document["problems"]
    assert problem.startswith("installed too late for 1 objects that hold native functions")
    assert [problem in line for line in caplog.messages] == [True]


@pytest.mark.usefixtures("on_cpu")
def test_garbage_that_holds_a_function_is_not_reported(board: str) -> None:
    PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))()
    gc.disable()
    try:
        backend: Any = hold("attribute")
        backend.itself = backend
        del backend
        with probed(board):
            assert slots(board)[0].document["problems"] == []
    finally:
        gc.enable()


def hold(how: str) -> object:
    """Something that holds a native function, as FlashInfer's own backends do."""
    function = getattr(native_decode_module(), DECODE)
    if how == "attribute":
        backend = type("Backend", (), {})()
        backend.run = function
        return backend
    if how == "closure":
        return lambda: function()
    return functools.partial(function)


@pytest.mark.usefixtures("on_cpu")
def test_uninstall_restores_the_identical_objects(
    board: str, caplog: pytest.LogCaptureFixture
) -> None:
    import flashinfer.jit.core as core

    for name in ("decode", "context", "ragged", "dsv4"):
        PUBLIC_CALLS[name].build(Shape(4, 32), workspace(64 * MIB))()
    modules = native_modules()
    before = [dict(vars(module)) for module in modules]
    door, finders = vars(core.JitSpec)["build_and_load"], list(sys.meta_path)
    probe = install(board=board)
    assert vars(core.JitSpec)["build_and_load"] is not door
    assert [vars(module) for module in modules] != before
    for _ in range(2):
        probe.uninstall()
        assert vars(core.JitSpec)["build_and_load"] is door
        assert sys.meta_path == finders
        for module, functions in zip(modules, before, strict=True):
            assert all(vars(module)[name] is function for name, function in functions.items())
    assert os.listdir(board) == []
    assert not any("patched again" in line for line in caplog.messages)


@pytest.mark.usefixtures("on_cpu")
def test_other_specs_are_not_touched(
    native_library: Path, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of another name is handed on as it came, though it has the same functions."""
    import flashinfer.jit.core as core
    import flashinfer.jit.env as env

    spec = core.gen_jit_spec("fmha_gen_other", [])
    monkeypatch.setattr(env, "FLASHINFER_AOT_DIR", tmp_path)
    (tmp_path / spec.name).mkdir()
    (tmp_path / spec.name / f"{spec.name}.so").symlink_to(native_library)
    with probed(board):
        assert vars(spec.build_and_load()).get(DECODE) is None


@pytest.mark.usefixtures("on_cpu")
def test_install_and_uninstall_under_running_threads(tmp_path: Path) -> None:
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))
    refused = PUBLIC_CALLS["decode"].build(Shape(4, 32, lse=True), workspace(MIB))
    call()
    done = threading.Event()

    def work() -> int:
        rounds = 0
        while not done.is_set():
            call()
            assert "trtllm_gen_" in repr(error_of(refused))
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(work) for _ in range(2)]
        try:
            for n in range(5):
                board = str(tmp_path / f"board{n}")
                with probed(board):
                    while not slots(board)[0].calls:
                        assert not any(worker.done() for worker in workers)
                    assert slots(board)[0].probe_errors == 0
        finally:
            done.set()
        assert all(worker.result() for worker in workers)
