"""The wrapper around one native op: the hot path.

It is written flat on purpose. A call like the one before it, as the layers of a model make them,
costs a few comparisons, one counter and one time; a known shape costs a lookup and a ring word
more; what is new or doubtful goes to the ledger. Nothing here may raise, query CUDA, or keep a
tensor alive.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from ws_guard.board.format import CODE_BITS, TICK_BITS
from ws_guard.foreign import Foreign, Tensor
from ws_guard.sizing import HeadDims

from .calls import Handling, Key, Known, Met, NativeCall, NativeFunction, as_elements, whole_at
from .dynamo import hide_from_dynamo
from .hot import Front, FrontPositions, in_front_of
from .ledger import Ledger

if TYPE_CHECKING:
    from ws_guard.contract import Contract


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

    def read(self, args: tuple[Any, ...]) -> NativeCall:
        """What matters of a call. Only shapes, sizes and addresses are looked at."""
        query, workspace = args[self.query], args[self.workspace]
        counter = None if self.counter is None else args[self.counter]
        top_k = 0 if self.top_k is None else max(0, whole_at(args, self.top_k))
        if self.sparse_indices is not None:
            top_k = args[self.sparse_indices].shape[-1]
        return NativeCall(
            batch=whole_at(args, self.batch),
            heads=query.shape[1],
            q_len=whole_at(args, self.q_len),
            lse=self.lse is not None and args[self.lse] is not None,
            sm_count=whole_at(args, self.sm_count),
            workspace_bytes=whole_at(args, self.workspace_size),
            workspace_address=workspace.data_ptr(),
            dims=HeadDims(query.shape[2], args[self.out].shape[-1], top_k),
            max_kv_len=None if self.kv_len is None else whole_at(args, self.kv_len),
            sum_q=query.shape[0],
            counter_buffer_bytes=None if counter is None else counter.numel() * counter.itemsize,
        )

    def with_workspace(self, args: tuple[Any, ...], workspace: Tensor) -> tuple[Any, ...]:
        """The same call on another workspace, a tensor of uint8."""
        changed = list(args)
        changed[self.workspace] = as_elements(workspace, args[self.workspace])
        changed[self.workspace_size] = workspace.numel()
        return tuple(changed)


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


def instrument(native: NativeFunction, where: Positions, ledger: Ledger) -> NativeFunction:
    """A function that does what `native` does and accounts for every call of it."""
    query_at, q_len_at, batch_at = where.query, where.q_len, where.batch
    size_at, workspace_at = where.workspace_size, where.workspace
    lse_at, top_k_at = _lse_at(where), _top_k_at(where)
    lane, recorder = ledger.lane, ledger.recorder
    meet = _meeting(where, ledger, lambda: front)

    def probe(*args: Foreign) -> Foreign:
        handling = None
        try:
            batch, q_len, size, no_lse, top_k, shape, workspace, address, words, word, times = (
                ledger.run
            )
            if (
                args[batch_at] == batch
                and args[q_len_at] == q_len
                and args[size_at] == size
                and (args[lse_at] is None) is no_lse
                and args[top_k_at] == top_k
                and args[query_at].shape == shape
                and (workspace() is args[workspace_at] or args[workspace_at].data_ptr() == address)
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
        (batch_at, q_len_at, size_at, top_k_at),
        lse_at,
        ((query_at, "shape"), (workspace_at, "data_ptr")),
    )
    front = in_front_of(probe, native, ledger.native_failed, ledger.hot_lane, positions)
    return front


def _meeting(
    where: Positions, ledger: Ledger, owner: Callable[[], object]
) -> Callable[[tuple[Any, ...]], Handling | None]:
    """What the hot path calls for a call that is not like the one before it."""
    query_at, q_len_at, batch_at = where.query, where.q_len, where.batch
    size_at, workspace_at = where.workspace_size, where.workspace
    lse_at, top_k_at = _lse_at(where), _top_k_at(where)
    per_token = ledger.per_token

    def meet(args: tuple[Any, ...]) -> Handling | None:
        if len(args) != where.arguments:
            count = f"{len(args)} arguments, not {where.arguments}"
            raise TypeError(f"{ledger.op} was called with {count}")
        shape, workspace = args[query_at].shape, args[workspace_at]
        tokens, heads, head_dim = shape
        batch, q_len, size = args[batch_at], args[q_len_at], args[size_at]
        no_lse, top_k, address = args[lse_at] is None, args[top_k_at], workspace.data_ptr()
        # The tokens of a batch vary from step to step where they do not follow from it.
        tokens = tokens if per_token else 0
        key = (batch, q_len, size, no_lse, top_k, heads, head_dim, address, tokens)
        shapes = ledger.known
        known = shapes.get(key)
        if known is not None and known.run[5] == shape and known.run[6]() is workspace:
            count_known(ledger, shapes, known, owner())
            return None
        like = (batch, q_len, size, no_lse, top_k, shape, ref(workspace), address)
        front = Front((batch, q_len, size, top_k), no_lse, (*shape, address))
        if known is None:
            lse = not no_lse
            return ledger.meet(
                Met(key, like, front, batch, lse, workspace, address, size, args, where)
            )
        known = shapes[key] = known._replace(run=(*like, *known.run[len(like) :]), front=front)
        count_known(ledger, shapes, known, owner())
        return None

    return meet


def count_known(ledger: Ledger, shapes: dict[Key, Known], known: Known, owner: object) -> None:
    """Count the first call of a run of a known shape; `owner` is the function that was called."""
    run, _, code, sum_word, _ = known
    words, word, times = run[-3:]
    words[word] += 1
    if sum_word:
        words[sum_word] += run[0]
    if ledger.hot_lane.ring_code != code:
        ledger.hot_lane.ring_code = code
        slot, lane = ledger.recorder.slot, ledger.lane
        moment = monotonic_ns() >> TICK_BITS << CODE_BITS | code
        slot.ring[slot.next_place()] = slot.last_run[lane] = moment
    times[ledger.lane] = monotonic()
    ledger.follow(known, shapes, owner)


def _lse_at(where: Positions) -> int:
    """An op without LSE looks at an argument that is never None: it is then always the same."""
    return where.workspace if where.lse is None else where.lse


def _top_k_at(where: Positions) -> int:
    """Sparse and dense MLA may share a workspace; an op of one kind looks at a number it knows."""
    return where.q_len if where.top_k is None else where.top_k
