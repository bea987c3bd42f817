"""The native modules that this process has loaded, and how they are called."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


DECODE = "trtllm_paged_attention_decode"


def native_modules() -> list[Any]:
    """Every native module that this process has loaded."""
    import tvm_ffi

    gc.collect()
    return [found for found in gc.get_objects() if type(found) is tvm_ffi.Module]


def native_decode_module() -> Any:
    from flashinfer.decode import get_trtllm_gen_fmha_module

    return get_trtllm_gen_fmha_module()


def native_arguments(call: Callable[[], Any]) -> tuple[Any, ...]:
    """The arguments with which a public call reaches the native decode."""
    module = native_decode_module()
    probe, caught = getattr(module, DECODE), []
    setattr(module, DECODE, lambda *args: caught.append(args))
    call()
    setattr(module, DECODE, probe)
    return caught[0]
