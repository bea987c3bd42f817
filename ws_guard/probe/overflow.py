"""The error that `raise` raises: all that a traceback must tell, in one message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ws_guard import sizing
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES, Call, Layout

if TYPE_CHECKING:
    from .calls import NativeCall


class WorkspaceOverflowError(RuntimeError):
    """A native call that its workspace cannot hold, raised instead of making it.

    A RuntimeError, as FlashInfer's own refusal is. Sizes in bytes: `need_bytes` of the whole call;
    `slab` asked `slab_bytes` of the `available_bytes` that were left (both None for the external
    counter); `overflow_threshold_batch` is the largest batch that fits, None where nothing limits
    it; `remedy` says what to set.
    """

    op: str
    workspace: str
    batch: int
    heads: int
    q_len: int
    lse: bool
    need_bytes: int
    workspace_bytes: int
    slab: str
    slab_bytes: int | None
    available_bytes: int | None
    overflow_threshold_batch: int | None
    remedy: str

    @classmethod
    def of(
        cls,
        *,
        op: str,
        workspace: str,
        call: Call,
        native: NativeCall,
        layout: Layout,
        planned: Mapping[str, Any],
        why_not_split: str,
    ) -> WorkspaceOverflowError:
        """The error for a call; `planned` is the plan of its workspace, or empty."""
        size, address = native.workspace_bytes, native.workspace_address
        call = call._replace(counter_buffer_bytes=native.counter_buffer_bytes)
        answer = sizing.carve(call, layout, size, address)
        wanted = sizing.need(call, layout, address)
        if answer.refused is None:
            slab, left = sizing.NATIVE_SLABS["scratch"], answer.scratch_available
            asked: int | None = wanted.slabs["scratch"]
        else:
            slab, asked = answer.refused.slab, answer.refused.size
            left = answer.refused.available
        threshold = sizing.overflow_threshold_batch(call, layout, size, address)
        remedy = _remedy(slab, wanted, planned)
        kind = "overrun" if answer.ok else "overflow"
        reach = "" if threshold is None else f"; the largest batch that fits is {threshold:,}"
        error = cls(
            f"ws_guard: {op} would {kind} workspace {workspace}: {call.batch:,} rows x "
            f"{call.heads:,} heads x {call.q_len:,} tokens{' with LSE' if call.lse else ''} need "
            f"{wanted.total:,} bytes, it has {size:,}: {_asked(slab, asked, left)}{reach}; {remedy}"
            + (f" (not split: {why_not_split})" if why_not_split else "")
        )
        error.op, error.workspace, error.remedy = op, workspace, remedy
        error.batch, error.heads, error.q_len = call.batch, call.heads, call.q_len
        error.lse, error.need_bytes, error.workspace_bytes = call.lse, wanted.total, size
        error.slab, error.slab_bytes, error.available_bytes = slab, asked, left
        error.overflow_threshold_batch = threshold
        return error


def _asked(slab: str, asked: int | None, left: int | None) -> str:
    if asked is None or left is None:
        return f"{slab} is too small"
    return f"{slab} takes {asked:,}, {left:,} available"


def _remedy(slab: str, wanted: sizing.Need, planned: Mapping[str, Any]) -> str:
    """The plan's advice where it covers the call: it knows the worst step and the engine."""
    if slab == sizing.EXTERNAL_COUNTER:
        return f"pass a {slab} for this batch and these heads, or none"
    advised, env = planned.get("recommended_workspace_bytes"), planned.get("env")
    if isinstance(advised, int) and advised >= wanted.total:
        if env:
            return "set " + " ".join(f"{name}={value}" for name, value in env.items())
        return f"give the workspace {advised:,} bytes"
    size = max(DEFAULT_WORKSPACE_BYTES + wanted.slabs["softmax_stats"], wanted.total)
    return f"give the workspace {size:,} bytes"
