"""XQA's native modules, stood in for by one that only looks, and decode steps that reach it."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ws_guard.contract import installed_xqa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

HEADS, KV_HEADS, PAGE = 64, 8, 64


class Native:
    """Stands for every module of XQA: one object for each spec, whose calls are kept."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.specs: list[str] = []
        self._names: dict[str, tuple[str, ...]] = installed_xqa().signatures

    def module(self, spec: str) -> Any:
        self.specs.append(spec)
        module = type("Module", (), {})()
        for op in self._names:
            setattr(module, op, functools.partial(self._call, spec, op))
        return module

    def _call(self, spec: str, op: str, *args: Any) -> None:
        named = dict(zip(self._names[op], args, strict=True))
        self.calls.append({"spec": spec, "op": op, **named})


@contextlib.contextmanager
def xqa_stands_in() -> Iterator[Native]:
    """FlashInfer loads `Native`'s modules where it would compile XQA's."""
    import flashinfer.jit.core as core

    native, original = Native(), core.JitSpec.build_and_load

    def build_and_load(spec: Any, *args: Any, **kwargs: Any) -> Any:
        if spec.name.startswith("xqa_"):
            return native.module(spec.name)
        return original(spec, *args, **kwargs)

    core.JitSpec.build_and_load = build_and_load
    try:
        yield native
    finally:
        core.JitSpec.build_and_load = original


class Step(NamedTuple):
    """A decode step: rows, tokens that each sees, query tokens of a row, head dimension."""

    batch: int
    tokens: int = 2048
    q_len: int = 1
    head_dim: int = 128

    def tensors(self) -> dict[str, Any]:
        import torch

        pages = self.tokens // PAGE
        mask_words = (self.q_len + 31) // 32 * 2
        cache = torch.empty(4, KV_HEADS, PAGE, self.head_dim, dtype=torch.bfloat16)
        return {
            "query": torch.empty(self.batch * self.q_len, HEADS, self.head_dim).bfloat16(),
            "kv_cache": (cache, cache),
            "block_tables": torch.zeros(self.batch, pages, dtype=torch.int32),
            "seq_lens": torch.full((self.batch,), self.tokens, dtype=torch.int32),
            "max_seq_len": self.tokens,
            "kv_layout": "HND",
            "q_len_per_req": self.q_len,
            "mask": torch.zeros(self.batch, self.q_len, mask_words, dtype=torch.uint16)
            if self.q_len > 1
            else None,
        }

    def call(self, buffer: torch.Tensor) -> Callable[[], Any]:
        """`trtllm_batch_decode_with_kv_cache`, which decodes by XQA here."""
        from flashinfer.decode import trtllm_batch_decode_with_kv_cache as call

        return functools.partial(call, workspace_buffer=buffer, bmm1_scale=0.1, **self.tensors())


def zeroed(size: int) -> torch.Tensor:
    """A workspace as FlashInfer asks for it."""
    import torch

    return torch.zeros(size, dtype=torch.uint8)
