"""Lets the installed FlashInfer's own Python run on CPU tensors, and puts everything back."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CAPABILITY = (10, 0)


@contextlib.contextmanager
def on_cpu(
    library: Path, *, sm_count: int = 148, capability: tuple[int, int] = _CAPABILITY
) -> Iterator[Recorder]:
    """Run FlashInfer's public functions on CPU tensors against `library`, a path from `build`.

    Within the block FlashInfer believes in a GPU of that `capability` with `sm_count` SMs. It
    loads the library by its own `JitSpec.build_and_load`, as a module that was built ahead of
    time, so whatever else hooks that method sees what it would see in production. Modules that
    FlashInfer loaded and kept before are forgotten, here and at the end.
    """
    with _pretended_gpu(library, sm_count, capability):
        yield Recorder(library)


@contextlib.contextmanager
def on_cpu_with(module: object, *, sm_count: int = 148) -> Iterator[None]:
    """As `on_cpu`, with a stand-in such as `reference.NativeModule` instead of a library."""
    import flashinfer.jit.core as core
    import flashinfer.jit.cubin_loader as cubins

    with contextlib.ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory())
        library = Path(folder) / "fmha_gen" / "fmha_gen.so"
        library.parent.mkdir()
        library.touch()
        undo.enter_context(_pretended_gpu(library, sm_count, _CAPABILITY))
        loader = ModuleType("tvm_ffi")
        vars(loader).update(vars(core.tvm_ffi), load_module=lambda _path: module)
        undo.enter_context(_attribute(core, "tvm_ffi", loader))
        undo.enter_context(_everywhere(cubins.setup_cubin_loader, lambda _path: None))
        yield


@contextlib.contextmanager
def _pretended_gpu(library: Path, sm_count: int, capability: tuple[int, int]) -> Iterator[None]:
    import flashinfer.decode
    import flashinfer.jit.attention.modules as modules
    import flashinfer.jit.core as core
    import flashinfer.jit.env as env
    import flashinfer.mla
    import flashinfer.prefill
    import flashinfer.utils as utils

    answers: dict[str, Callable[..., Any]] = {
        "get_device_sm_count": lambda _device: sm_count,
        "get_compute_capability": lambda _device: capability,
        "device_support_pdl": lambda _device: True,
    }
    with contextlib.ExitStack() as undo:
        _forget_results()
        undo.callback(_forget_results)
        for name, answer in answers.items():
            undo.enter_context(_everywhere(getattr(utils, name), answer))
        # Sources of the GPU code that the stub replaces: otherwise downloaded, checked, compiled.
        undo.enter_context(_attribute(modules, "get_artifact", lambda *_args, **_kw: b"unused"))
        undo.enter_context(_attribute(modules, "get_meta_hash", lambda *_args, **_kw: "unused"))
        undo.enter_context(_attribute(core, "check_cuda_arch", lambda: None))
        undo.enter_context(_attribute(env, "FLASHINFER_AOT_DIR", library.parent.parent))
        for module in (flashinfer.decode, flashinfer.prefill):
            undo.enter_context(_attribute(module, "torch", _unpinned(module.torch)))
        yield


def _unpinned(torch: ModuleType) -> ModuleType:
    """A torch for the wrappers' modules: without a GPU there is no memory to pin.

    A stand-in there rather than a change of torch itself, which belongs to the whole process.
    """

    def empty(*sizes: Any, pin_memory: bool = False, **options: Any) -> Any:  # noqa: ANN401, ARG001 - as torch's
        return torch.empty(*sizes, **options)

    stand_in = ModuleType("torch")
    stand_in.__getattr__ = lambda name: getattr(torch, name)  # type: ignore[method-assign]  # a module may have one
    vars(stand_in)["empty"] = empty
    return stand_in


def _flashinfer_modules() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if module is not None and (name == "flashinfer" or name.startswith("flashinfer."))
    ]


def _forget_results() -> None:
    """Empty FlashInfer's caches: they hold loaded modules and answers about the device."""
    for module in _flashinfer_modules():
        for value in list(vars(module).values()):
            clear = getattr(value, "cache_clear", None)
            if clear is not None and str(getattr(value, "__module__", "")).startswith("flashinfer"):
                clear()


@contextlib.contextmanager
def _everywhere(original: object, replacement: object) -> Iterator[None]:
    """Replace a function in every FlashInfer module that has bound it, under whatever name."""
    _rebind(original, replacement)
    try:
        yield
    finally:
        # A second look: a module imported meanwhile has bound the replacement.
        _rebind(replacement, original)


def _rebind(old: object, new: object) -> None:
    for module in _flashinfer_modules():
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)


@contextlib.contextmanager
def _attribute(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
