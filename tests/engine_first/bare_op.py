"""A decode under the probe without torch: processes that make native calls, and start at once.

The probe looks at a tensor's shape and address alone; these have no more.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ws_guard.contract import Contract, installed_contract
from ws_guard.probe.instruments import Instruments
from ws_guard.probe.ledger import Ledger
from ws_guard.probe.native_op import instrument, positions_of
from ws_guard.probe.parts import Parts
from ws_guard.sizing import OPS

if TYPE_CHECKING:
    from ws_guard.probe import Probe
    from ws_guard.probe.calls import NativeFunction
    from ws_guard.probe.recorder import Recorder

DECODE = OPS["decode"]
WORKSPACE_BYTES = 394 << 20

#: FlashInfer's own words, for a call that does not fit.
REFUSAL = (
    "Buffer overflow when allocating memory for trtllm_gen_softmax_workspace with size 404881408 "
    "and alignment 16, but only 404750336 bytes available in AlignedAllocator."
)


class Tensor:
    """What the probe sees of a tensor."""

    __slots__ = ("__weakref__", "address", "shape")

    itemsize = 1
    is_cuda = False
    #: Its bytes are nowhere: nobody looks whether they are zero.
    is_meta = True

    def __init__(self, *shape: int, address: int = 1 << 32) -> None:
        self.shape = shape
        self.address = address

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.shape[0]


class Decode:
    """Arguments of a decode, in the order of the installed FlashInfer."""

    def __init__(self, contract: Contract | None = None) -> None:
        self.contract = contract or installed_contract()
        self._names = self.contract.signatures[DECODE]
        self._where = positions_of(self.contract, DECODE)
        self._workspace = Tensor(WORKSPACE_BYTES)

    def arguments(
        self, batch: int, *, heads: int = 64, q_len: int = 1, lse: bool = False
    ) -> tuple[Any, ...]:
        """A call of this shape; without LSE it fits at any batch."""
        named = {
            "out": Tensor(batch, heads, 512),
            "query": Tensor(batch, heads, 576),
            "workspace_buffer": self._workspace,
            "max_q_len": q_len,
            "max_kv_len": 65_536,
            "batch_size": batch,
            "sparse_mla_top_k": 2048,
            "sm_count": 148,
            "workspace_size": WORKSPACE_BYTES,
            "lse": Tensor(batch, heads) if lse else None,
        }
        return tuple(named.get(name) for name in self._names)

    def over(self, native: NativeFunction, recorder: Recorder) -> NativeFunction:
        """The op under a probe that records on `recorder`."""
        ledger = Ledger(recorder, DECODE, Parts.of(recorder))
        return instrument(native, self._where, ledger)

    def batch_of(self, args: tuple[Any, ...]) -> int:
        batch: int = args[self._where.batch]
        return batch


def installed_over(probe: Probe, native: NativeFunction) -> NativeFunction:
    """The op as an installed probe finds it in a module that FlashInfer loads."""
    (instruments,) = (part for part in probe._instruments if isinstance(part, Instruments))
    module = SimpleNamespace(**{DECODE: native})
    instruments._instrument(module)
    op: NativeFunction = vars(module)[DECODE]
    assert op is not native
    return op
