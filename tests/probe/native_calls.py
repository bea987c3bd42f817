"""An op under a probe, and arguments to call it with.

Positions come from the installed FlashInfer's source; the tensors are real, and cost no memory.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ws_guard.contract import Contract, installed_contract
from ws_guard.probe.calls import NativeCall, NativeFunction
from ws_guard.probe.graphs import Graphs
from ws_guard.probe.hot import Front
from ws_guard.probe.instruments import Instruments
from ws_guard.probe.ledger import Ledger
from ws_guard.probe.native_op import instrument, positions_of
from ws_guard.probe.parts import Parts
from ws_guard.probe.split import Splitter
from ws_guard.probe.tuning import Tuning
from ws_guard.reference import NativeModule
from ws_guard.sizing import OPS, HeadDims

if TYPE_CHECKING:
    from ws_guard.probe.recorder import Recorder

MIB = 1 << 20
DECODE = OPS["decode"]

#: What FlashInfer 0.6.14 says of 3,081 rows in 394 MiB; native functions of tests raise it.
REFUSAL = (
    "Error in function 'aligned_alloc' at include/flashinfer/allocator.h:49: Buffer overflow when "
    "allocating memory for trtllm_gen_softmax_workspace with size 404881408 and alignment 16, but "
    "only 404750336 bytes available in AlignedAllocator. Increase the workspace buffer size."
)
#: Refused by every layout: its stats alone are larger than the workspace.
REFUSED_BATCH = 12_288


class Watched(NamedTuple):
    """A decode under a probe: `over(native)` is what an engine would call."""

    contract: Contract
    ledger: Ledger
    tuning: Tuning
    graphs: Graphs

    def over(self, native: NativeFunction) -> NativeFunction:
        return instrument(native, positions_of(self.contract, DECODE), self.ledger)

    def at(self, parameter: str) -> int:
        """Position of a native parameter."""
        return self.contract.signatures[DECODE].index(parameter)

    def reference(self) -> NativeFunction:
        """A native decode that carves, refuses and computes as the launcher and its kernel."""
        assert self.contract.layout is not None
        native: NativeFunction = getattr(
            NativeModule(self.contract.layout, self.contract.signatures), DECODE
        )
        return native


#: What the hot path compares first; of these calls, which it never sees, nothing.
NO_FRONT = Front((), False, ())


def sparse_call(batch: int, workspace_bytes: int, **more: object) -> NativeCall:
    """What is read of a sparse MLA decode of 64 heads with LSE over long sequences."""
    call = NativeCall(
        batch=batch,
        heads=64,
        q_len=1,
        lse=True,
        sm_count=148,
        workspace_bytes=workspace_bytes,
        workspace_address=4096,
        dims=HeadDims(576, 512, 2048),
        max_kv_len=65_536,
        sum_q=batch,
        counter_buffer_bytes=None,
    )
    return call._replace(**more)


class Told(NamedTuple):
    """Arguments that say what a call is."""

    call: NativeCall

    def read(self, _args: tuple[Any, ...]) -> NativeCall:
        return self.call

    def with_workspace(self, args: tuple[Any, ...], _workspace: object) -> tuple[Any, ...]:
        return args


#: Read once: it is a large source.
contract = functools.cache(installed_contract)


def watch(recorder: Recorder, on_overflow: str = "observe") -> Watched:
    """A decode whose calls `recorder` records."""
    splitters = {DECODE: Splitter(contract().signatures[DECODE])}
    parts = Parts.of(recorder, on_overflow, splitters)
    ledger = Ledger(recorder, DECODE, parts)
    return Watched(contract(), ledger, parts.tuning, parts.graphs)


def decode_arguments(
    batch: int, workspace: torch.Tensor, *, heads: int = 64, lse: bool = True, top_k: int = 2048
) -> list[Any]:
    """A sparse MLA decode step of `batch` rows in native order; all but the workspace on `meta`."""
    cache = torch.empty(16, 1, 64, 576, device="meta")
    named = {
        "out": torch.empty(batch, 1, heads, 512, device="meta"),
        "query": torch.empty(batch, heads, 576, device="meta"),
        "key_cache": cache,
        "value_cache": cache,
        "workspace_buffer": workspace,
        "block_tables": torch.empty(batch, 1, 2048, dtype=torch.int32, device="meta"),
        "seq_lens": torch.empty(batch, dtype=torch.int32, device="meta"),
        "max_q_len": 1,
        "max_kv_len": 65_536,
        "bmm1_scale": 1.0,
        "bmm2_scale": 1.0,
        "batch_size": batch,
        "sparse_mla_top_k": top_k,
        "sm_count": 148,
        "workspace_size": workspace.numel(),
        "lse": torch.empty(batch, heads, device="meta") if lse else None,
    }
    return [named.get(name) for name in contract().signatures[DECODE]]


def nothing(*_args: object) -> None:
    """The cheapest native function there is."""


def workspace(size: int = 394 * MIB) -> torch.Tensor:
    """A workspace whose pages are never touched."""
    return torch.empty(size, dtype=torch.uint8)


def instrumented(probe: Any, native: NativeFunction) -> NativeFunction:
    """A native decode as an installed probe finds it in a module that FlashInfer loads."""
    (instruments,) = (part for part in probe._instruments if isinstance(part, Instruments))
    module = SimpleNamespace(**{DECODE: native})
    instruments._instrument(module)
    op: NativeFunction = vars(module)[DECODE]
    assert op is not native
    return op
