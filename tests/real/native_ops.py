"""Calls the compiled launcher's exported functions directly and reads its answer.

Argument positions come from the launcher's own source, read here a second time on purpose: what
ws_guard reads from it is under test.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ws_guard.launcher import Recorder
from ws_guard.sizing import OPS, Call, Slab

if TYPE_CHECKING:
    from pathlib import Path

    import torch

_TOP_K = 128
_OVERFLOW = re.compile(
    r"Buffer overflow when allocating memory for (\w+) with size (\d+) and alignment (\d+), "
    r"but only (\d+) bytes available"
)
#: A bare check, whose text is the failed comparison.
_COUNTER = "(static_cast<size_t>(multi_ctas_kv_counter_size) >= counter_bytes) is false"


class Answer(NamedTuple):
    """What the launcher did: offsets from the workspace's start, or slab, size, alignment, rest."""

    offsets: dict[Slab, int]
    refused: tuple[str, int | None, int | None, int | None] | None
    #: Bytes left for scratch; -1 where the release does not tell.
    scratch_bytes: int

    @property
    def ok(self) -> bool:
        return self.refused is None


class Parameter(NamedTuple):
    type: str
    name: str


def exported_parameters(source: str) -> dict[str, list[Parameter]]:
    """Parameters of every exported function, in order."""
    exports = re.findall(r"TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*(\w+)\s*,\s*(\w+)\s*\)", source)
    return {name: _parameters(source, function) for name, function in exports}


def _parameters(source: str, function: str) -> list[Parameter]:
    match = re.search(rf"\n[\w:]+ {function}\(([^)]*)\)", source)
    assert match is not None, function
    # A comma between angle brackets belongs to a type.
    texts = re.split(r",(?![^<]*>)", match[1])
    return [Parameter(*text.strip().rsplit(None, 1)) for text in texts]


class NativeOps:
    """The launcher of one library, fed with CPU tensors."""

    def __init__(self, library: Path, source: Path) -> None:
        import torch
        import tvm_ffi

        self._module = tvm_ffi.load_module(str(library))
        self._recorder = Recorder(library)
        self._parameters = exported_parameters(source.read_text())
        # Only its address and the size that is told count: the launcher writes nothing.
        self._arena = torch.empty(64, dtype=torch.uint8)
        self._counter = torch.empty(64 << 20, dtype=torch.uint8)

    @property
    def address(self) -> int:
        return int(self._arena.data_ptr())

    def carve(self, call: Call, workspace_bytes: int, misaligned_by: int = 0) -> Answer:
        """Ask the launcher to carve `call` out of a workspace of that size."""
        buffer = self._arena[misaligned_by:]
        arguments = self.arguments(call, workspace_bytes, workspace_buffer=buffer)
        before = self._recorder.last()
        try:
            getattr(self._module, OPS[call.entry])(*arguments)
        except RuntimeError as error:
            return Answer({}, _refusal(str(error)), -1)
        launch = self._recorder.last()
        assert launch is not None
        assert launch != before
        counter = 0 if launch.counter == self._counter.data_ptr() else launch.counter
        slabs: dict[Slab, int] = {
            "counter": counter,
            "softmax_stats": launch.softmax_stats,
            "scratch": launch.scratch,
        }
        offsets = {slab: at - buffer.data_ptr() for slab, at in slabs.items() if at}
        return Answer(offsets, None, launch.scratch_bytes)

    def arguments(self, call: Call, workspace_bytes: int, **named: Any) -> list[Any]:
        """Native arguments of `call` in order; `named` has the workspace, and others to replace."""
        known = self._named(call, workspace_bytes) | named
        parameters = self._parameters[OPS[call.entry]]
        return [known[p.name] if p.name in known else _neutral(p) for p in parameters]

    def _named(self, call: Call, workspace_bytes: int) -> dict[str, Any]:
        import torch

        tokens = call.batch * call.q_len if call.sum_q is None else call.sum_q
        counter = self._counter
        if call.counter_buffer_bytes is not None:
            counter = counter[: call.counter_buffer_bytes]
        shared = {
            "multi_ctas_kv_counter_buffer": counter,
            "seq_lens": torch.empty(call.batch, dtype=torch.int32),
            "cum_seq_lens_q": None,
            "batch_size": call.batch,
            "max_q_len": call.q_len,
            "max_kv_len": 128,
            "o_sf_vec_size": -1,
            "window_left": -1,
            "window_right": -1,
            "sm_count": call.sm_count,
            "workspace_size": workspace_bytes,
            "is_causal": True,
            "lse": _spread(tokens, call.heads, dtype=torch.float32) if call.lse else None,
        }
        return shared | _tensors(call, tokens)


def _tensors(call: Call, tokens: int) -> dict[str, Any]:
    import torch

    if call.entry == "dsv4":
        indices = torch.empty(tokens, _TOP_K, dtype=torch.int32)
        cache = torch.empty(1, 1, 64, 512, dtype=torch.bfloat16)
        return {
            "out": _spread(tokens, call.heads, 512),
            "query": _spread(tokens, call.heads, 512),
            "primary_kv_cache": cache,
            "sliding_window_kv_cache": cache,
            "sparse_indices": indices,
            "remapped_sparse_indices": indices,
            "sparse_mla_top_k_lens": torch.empty(tokens, dtype=torch.int32),
        }
    cache = torch.empty(1, 1, 64, 128, dtype=torch.bfloat16)
    row = torch.empty(1, 1, 128, dtype=torch.bfloat16)
    named: dict[str, Any] = {
        "out": _spread(tokens, call.heads, 128),
        "query": _spread(tokens, call.heads, 128),
        "key_cache": cache,
        "value_cache": cache,
        "key": row,
        "value": row,
        "block_tables": torch.empty(1, 2, dtype=torch.int32),
    }
    if call.entry in ("context", "ragged"):
        offsets = torch.empty(1, dtype=torch.int32)
        named |= {"cum_seq_lens_q": offsets, "cum_seq_lens_kv": offsets}
    return named


def _spread(*sizes: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of any size that takes the memory of one element."""
    import torch

    return torch.empty(1, dtype=dtype or torch.bfloat16).expand(*sizes)


def _neutral(parameter: Parameter) -> object:
    """What turns a feature off: newer releases have parameters that no carve depends on."""
    if parameter.type.startswith("Optional"):
        return None
    neutral = {"bool": False, "int64_t": 0, "double": 1.0, "Variant<double, ffi::Tensor>": 1.0}
    return neutral[parameter.type]


def _refusal(text: str) -> tuple[str, int | None, int | None, int | None]:
    overflow = _OVERFLOW.search(text)
    if overflow is not None:
        slab, *numbers = overflow.groups()
        size, alignment, available = (int(number) for number in numbers)
        return slab, size, alignment, available
    assert _COUNTER in text, text
    return "multi_ctas_kv_counter_buffer", None, None, None
