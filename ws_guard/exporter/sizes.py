"""From a shape on the board to bytes and batches, by `ws_guard.sizing`.

A shape never changes, so neither do its numbers: what is dear to work out is remembered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ws_guard.board import Shape
from ws_guard.sizing import (
    DEFAULT_WORKSPACE_BYTES,
    ENTRY_OF_OP,
    LAYOUTS,
    XQA_OPS,
    Call,
    Carve,
    HeadDims,
    InputError,
    Layout,
    carve,
    last_batch_with_scratch,
    need,
    overflow_threshold_batch,
    overrun_batches,
    overruns,
)

from .document import Document
from .model import Numbers


class Sized(NamedTuple):
    """What is asked of every shape on a board: its need, and whether it may overrun."""

    need_bytes: int
    overrun_possible: bool


def size_shape(shape: Shape, document: Document) -> Sized | None:
    """Need of a shape; None where op or layout is not known, or where no call has such a shape."""
    known = _call(shape, document)
    if known is None:
        return None
    call, layout = known
    total = need(call, layout, shape.address_mod_16).total
    # An overrun needs more than the workspace has: hardly any shape comes to the second question.
    over = total > shape.workspace_bytes and overruns(
        call, layout, shape.workspace_bytes, shape.address_mod_16
    )
    return Sized(total, over)


def carve_shape(shape: Shape, document: Document) -> Carve | None:
    """What the launcher made of a shape; None where that is not known."""
    known = _call(shape, document)
    if known is None:
        return None
    return carve(*known, shape.workspace_bytes, shape.address_mod_16)


def number_shape(shape: Shape, document: Document) -> Numbers:
    """Every number of a shape, as far as op and layout are known."""
    known = _call(shape, document)
    if known is None:
        return Numbers(
            need_bytes=None,
            workspace_bytes=shape.workspace_bytes,
            batch=shape.batch,
            overflow_threshold_batch=None,
            overrun_batches=None,
            slabs={},
            heads=shape.heads,
            q_len=shape.q_len,
            lse=shape.lse,
            recommended_workspace_bytes=None,
            env={},
            reasons=(),
        )
    call, layout = known
    wanted = need(call, layout, shape.address_mod_16)
    where = (layout.name, shape.workspace_bytes, shape.address_mod_16)
    fits = wanted.total <= shape.workspace_bytes
    # The rule of `sizing.plan`: the base that engines bring stays, the slab of the call is added.
    recommended = max(DEFAULT_WORKSPACE_BYTES + wanted.slabs["softmax_stats"], wanted.total)
    return Numbers(
        need_bytes=wanted.total,
        workspace_bytes=shape.workspace_bytes,
        batch=call.batch,
        overflow_threshold_batch=_threshold(call._replace(batch=1), *where),
        overrun_batches=_overrun(_with_scratch(call), *where),
        slabs={str(slab): size for slab, size in wanted.slabs.items()},
        heads=call.heads,
        q_len=call.q_len,
        lse=call.lse,
        recommended_workspace_bytes=None if fits else recommended,
        env={},
        reasons=(),
    ).with_margins()


def _call(shape: Shape, document: Document) -> tuple[Call, Layout] | None:
    entry = ENTRY_OF_OP.get(document.op_name(shape.op))
    # XQA's workspace is sliced in the same way by every layout, or none that is known.
    layout = LAYOUTS["C"] if entry in XQA_OPS else document.layout
    if entry is None or layout is None:
        return None
    dims = HeadDims(shape.qk, shape.vo, shape.top_k) if shape.qk and shape.vo else None
    call = Call(
        entry=entry,
        heads=shape.heads,
        batch=shape.batch,
        q_len=shape.q_len,
        lse=shape.lse,
        sm_count=shape.sm_count,
        sum_q=shape.sum_q,
        counter_buffer_bytes=shape.counter_buffer_bytes,
        dims=dims,
        kv_heads=shape.kv_heads or None,
        sm90_fp8=shape.sm90_fp8,
    )
    try:
        return call.checked(), layout
    except InputError:
        return None


def _with_scratch(call: Call) -> Call:
    """A call with the same overrun range: larger batches use no scratch."""
    return call._replace(batch=max(1, last_batch_with_scratch(call)))


# The keys leave out what the answers do not depend on, so that the batches of a busy worker share.
@lru_cache(maxsize=4096)
def _threshold(call: Call, layout: str, workspace_bytes: int, address: int) -> int | None:
    return overflow_threshold_batch(call, LAYOUTS[layout], workspace_bytes, address)


@lru_cache(maxsize=4096)
def _overrun(call: Call, layout: str, workspace_bytes: int, address: int) -> tuple[int, int] | None:
    return overrun_batches(call, LAYOUTS[layout], workspace_bytes, address)
