"""The wrapper around one native op: the hot path.

It is written flat on purpose. A call of a known, harmless shape costs one dictionary lookup, one
counter and one ring word; nothing here may raise, query CUDA, or keep a tensor alive.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from time import monotonic_ns
from typing import Any, NamedTuple

from ws_guard.board.format import RING_CALLS
from ws_guard.board.writer import RING_WORD
from ws_guard.contract import Contract
from ws_guard.sizing import HeadDims

from .dynamo import hide_from_dynamo
from .ledger import Key, Ledger, NativeCall
from .tuning import Tuning

_RING_MASK = RING_CALLS - 1
# A ring word is (ticks, row, outcome); ticks are 1,024 ns and stand above 18 bits.
_TICK_SHIFT, _CODE_BITS = 10, 18

NativeFunction = Callable[..., Any]


class Positions(NamedTuple):
    """Where an op keeps the arguments that matter; None where it has none of that name."""

    arguments: int
    out: int
    query: int
    workspace: int
    counter: int | None
    q_len: int
    kv_len: int | None
    batch: int
    sm_count: int
    workspace_size: int
    lse: int | None
    top_k: int | None
    sparse_indices: int | None


def positions_of(contract: Contract, op: str) -> Positions:
    """Argument positions of an op, from the installed launcher's own parameter names."""

    def at(name: str) -> int | None:
        return contract.position(op, name)

    def must(name: str) -> int:
        return contract.signatures[op].index(name)

    return Positions(
        arguments=len(contract.signatures[op]),
        out=must("out"),
        query=must("query"),
        workspace=must("workspace_buffer"),
        counter=at("multi_ctas_kv_counter_buffer"),
        q_len=must("max_q_len"),
        kv_len=at("max_kv_len"),
        batch=must("batch_size"),
        sm_count=must("sm_count"),
        workspace_size=must("workspace_size"),
        lse=at("lse"),
        top_k=at("sparse_mla_top_k"),
        sparse_indices=at("sparse_indices"),
    )


def instrument(
    native: NativeFunction, where: Positions, ledger: Ledger, tuning: Tuning
) -> NativeFunction:
    """A function that does what `native` does and accounts for every call of it."""
    op, recorder, rows = ledger.op, ledger.recorder, ledger.rows
    query_at, q_len_at, batch_at = where.query, where.q_len, where.batch
    size_at, workspace_at = where.workspace_size, where.workspace
    # An op without LSE looks at an argument that is never None: its key is then always the same.
    lse_at = where.workspace if where.lse is None else where.lse
    # Sparse and dense MLA may share a workspace; an op of one kind looks at a number of its key.
    top_k_at = where.q_len if where.top_k is None else where.top_k
    per_token = ledger.per_token
    slot = recorder.slot
    words, next_call, attached_ns = slot.words, slot.next_call, slot.attached_monotonic_ns

    def rebind() -> None:
        nonlocal words, next_call, attached_ns
        slot = recorder.slot
        words, next_call, attached_ns = slot.words, slot.next_call, slot.attached_monotonic_ns

    def account(args: tuple[Any, ...], key: Key) -> bool:
        if len(args) != where.arguments:
            raise TypeError(f"{op} was called with {len(args)} arguments, not {where.arguments}")
        return ledger.account(read_call(args, where), key, tuning.tuner.is_tuning_mode)

    def probe(*args: Any) -> Any:  # noqa: ANN401 - whatever the native function takes and gives
        refusal_foreseen = False
        try:
            tokens, heads, head_dim = args[query_at].shape
            key = (
                args[batch_at],
                args[q_len_at],
                heads,
                head_dim,
                args[workspace_at].data_ptr(),
                args[size_at],
                args[lse_at] is None,
                tokens if per_token else args[top_k_at],
            )
            row = rows.get(key)
            if row is None or tuning.tuner.is_tuning_mode:
                refusal_foreseen = account(args, key)
            else:
                count_word, sum_word, ring_code, _ = row
                words[count_word] += 1
                if sum_word:
                    words[sum_word] += key[0]
                words[RING_WORD + (next_call() & _RING_MASK)] = (
                    monotonic_ns() - attached_ns
                ) >> _TICK_SHIFT << _CODE_BITS | ring_code
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            recorder.stumbled(error)
        try:
            result = native(*args)
        except Exception as error:
            recorder.native_failed(op, refusal_foreseen, error, tuning)
            raise
        if refusal_foreseen:
            recorder.native_passed(op)
        return result

    recorder.on_new_slot.append(rebind)
    hide_from_dynamo(probe)
    return probe


def read_call(args: tuple[Any, ...], where: Positions) -> NativeCall:
    """What matters of a call's arguments. Only shapes, sizes and addresses are looked at."""

    def number(at: int) -> int:
        value = args[at]
        # A tensor here would be compared, which asks CUDA for its value, and kept alive in a row.
        if not isinstance(value, Integral):
            raise TypeError(f"{type(value).__name__} at {at} where a whole number was expected")
        return int(value)

    query = args[where.query]
    counter = None if where.counter is None else args[where.counter]
    top_k = 0 if where.top_k is None else max(0, number(where.top_k))
    if where.sparse_indices is not None:
        top_k = args[where.sparse_indices].shape[-1]
    return NativeCall(
        batch=number(where.batch),
        heads=query.shape[1],
        q_len=number(where.q_len),
        lse=where.lse is not None and args[where.lse] is not None,
        sm_count=number(where.sm_count),
        workspace_bytes=number(where.workspace_size),
        workspace_address=args[where.workspace].data_ptr(),
        dims=HeadDims(query.shape[2], args[where.out].shape[-1], top_k),
        max_kv_len=None if where.kv_len is None else number(where.kv_len),
        sum_q=query.shape[0],
        counter_buffer_bytes=None if counter is None else counter.numel() * counter.itemsize,
    )
