"""The wrapper around an XQA op: the hot path of the decode kernels that run on other GPUs.

As in `native_op`. XQA gets its workspace as two views of one buffer, semaphores and scratch, which
FlashInfer slices anew for every call: they are known by address and size.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ws_guard.foreign import Foreign, Tensor
from ws_guard.sizing import XQA_SEMAPHORE_BYTES, HeadDims

from .calls import Handling, Met, NativeCall, NativeFunction, as_elements, whole_at
from .dynamo import hide_from_dynamo
from .hot import Front, FrontPositions, in_front_of
from .ledger import Ledger
from .native_op import count_known

if TYPE_CHECKING:
    from ws_guard.contract import XqaContract


class XqaPositions(NamedTuple):
    """Where an XQA op keeps the arguments that matter; None where it has none of that name."""

    arguments: int
    out: int
    query: int
    semaphores: int
    scratch: int
    batch: int
    sm_count: int
    kv_len: int
    q_len: int | None
    kv_heads: int | None
    sm90_fp8: int | None
    ragged: int | None

    def read(self, args: tuple[Any, ...]) -> NativeCall:
        """What matters of a call. Only shapes, sizes and addresses are looked at."""
        query, out = args[self.query].shape, args[self.out].shape
        batch = whole_at(args, self.batch)
        q_len = 1 if self.q_len is None else whole_at(args, self.q_len)
        ragged = self.ragged is not None and args[self.ragged] is not None
        address, size = _workspace(args[self.semaphores], args[self.scratch])
        return NativeCall(
            batch=batch,
            heads=query[-2],
            q_len=q_len,
            lse=False,
            sm_count=whole_at(args, self.sm_count),
            workspace_bytes=size,
            workspace_address=address,
            dims=HeadDims(query[-1], out[-1]),
            max_kv_len=whole_at(args, self.kv_len),
            sum_q=query[0] if ragged else batch * q_len,
            counter_buffer_bytes=None,
            kv_heads=None if self.kv_heads is None else whole_at(args, self.kv_heads),
            sm90_fp8=None if self.sm90_fp8 is None else bool(args[self.sm90_fp8]),
        )

    def with_workspace(self, args: tuple[Any, ...], workspace: Tensor) -> tuple[Any, ...]:
        """The same call on another workspace, a tensor of uint8."""
        changed = list(args)
        for at, view in (
            (self.semaphores, workspace[:XQA_SEMAPHORE_BYTES]),
            (self.scratch, workspace[XQA_SEMAPHORE_BYTES:]),
        ):
            changed[at] = as_elements(view, args[at])
        return tuple(changed)


def xqa_positions_of(contract: XqaContract, op: str) -> XqaPositions:
    """Argument positions of an XQA op, from the installed source's own parameter names."""

    def at(name: str) -> int | None:
        return contract.position(op, name)

    def must(name: str) -> int:
        return contract.signatures[op].index(name)

    return XqaPositions(
        arguments=len(contract.signatures[op]),
        out=must("output"),
        query=must("q"),
        semaphores=must("semaphores"),
        scratch=must("scratch"),
        batch=must("batchSize"),
        sm_count=must("multiProcessorCount"),
        kv_len=must("maxSeqLen"),
        q_len=at("qSeqLen"),
        kv_heads=at("nbKHeads"),
        sm90_fp8=at("run_sm90_fp8_mha"),
        ragged=at("qCuSeqLens"),
    )


def instrument_xqa(native: NativeFunction, where: XqaPositions, ledger: Ledger) -> NativeFunction:
    """A function that does what `native` does and accounts for every call of it.

    A module of XQA is compiled for one head dim, one ratio of heads to KV heads and one kernel:
    these need not be asked of the tensors of every call.
    """
    batch_at, q_len_at, kv_heads_at, ragged_at = _compared(where)
    semaphores_at, scratch_at = where.semaphores, where.scratch
    lane, recorder = ledger.lane, ledger.recorder
    meet = _meeting(native, where, ledger, lambda: front)

    def probe(*args: Foreign) -> Foreign:
        handling = None
        try:
            batch, q_len, kv_heads, uniform, module, size, address, _, words, word, times = (
                ledger.run
            )
            if (
                args[batch_at] == batch
                and args[q_len_at] == q_len
                and args[kv_heads_at] == kv_heads
                and (args[ragged_at] is None) is uniform
                and module is native
                and args[scratch_at].nbytes == size
                and args[semaphores_at].data_ptr() == address
            ):
                words[word] += 1
                times[lane] = monotonic()
            else:
                handling = meet(args)
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            recorder.stumbled(error)
        if handling is not None:
            return handling(native, args)
        try:
            return native(*args)
        except Exception as error:
            ledger.native_failed(error)
            raise

    hide_from_dynamo(probe)
    positions = FrontPositions(
        where.arguments,
        (batch_at, q_len_at, kv_heads_at),
        ragged_at,
        ((scratch_at, "nbytes"), (semaphores_at, "data_ptr")),
    )
    front = in_front_of(probe, native, ledger.native_failed, ledger.hot_lane, positions)
    return front


def _meeting(
    native: NativeFunction, where: XqaPositions, ledger: Ledger, owner: Callable[[], object]
) -> Callable[[tuple[Any, ...]], Handling | None]:
    """What the hot path calls for a call that is not like the one before it."""
    batch_at, q_len_at, kv_heads_at, ragged_at = _compared(where)

    def meet(args: tuple[Any, ...]) -> Handling | None:
        if len(args) != where.arguments:
            count = f"{len(args)} arguments, not {where.arguments}"
            raise TypeError(f"{ledger.op} was called with {count}")
        semaphores, scratch = args[where.semaphores], args[where.scratch]
        like = (
            args[batch_at],
            args[q_len_at],
            args[kv_heads_at],
            args[ragged_at] is None,
            native,
            scratch.nbytes,
            semaphores.data_ptr(),
            None,
        )
        shapes = ledger.known
        known = shapes.get(like)
        if known is not None:
            count_known(ledger, shapes, known, owner())
            return None
        address, size = _workspace(semaphores, scratch)
        front = Front(like[:3], like[3], like[5:7])
        # Tokens of a ragged query decide whether its scratch is exact, which is asked of every call
        # that may go wrong, and not how much it is: they tell no shapes apart.
        return ledger.meet(
            Met(like, like, front, like[0], False, semaphores, address, size, args, where)
        )

    return meet


def _compared(where: XqaPositions) -> tuple[int, int, int, int]:
    """Where batch, q_len, KV heads and the mark of a ragged query stand.

    An op without one of them looks at its batch again, or at what is never None.
    """
    q_len = where.batch if where.q_len is None else where.q_len
    kv_heads = where.batch if where.kv_heads is None else where.kv_heads
    return where.batch, q_len, kv_heads, where.scratch if where.ragged is None else where.ragged


def _workspace(semaphores: Tensor, scratch: Tensor) -> tuple[int, int]:
    """(address, bytes) of the buffer that both are views of.

    Who calls XQA by itself may bring two buffers: the scratch then stands for a workspace whose
    semaphores are elsewhere.
    """
    head, rest = (view.nbytes for view in (semaphores, scratch))
    address = semaphores.data_ptr()
    if rest and scratch.data_ptr() != address + head:
        return scratch.data_ptr(), XQA_SEMAPHORE_BYTES + rest
    return address, head + rest
