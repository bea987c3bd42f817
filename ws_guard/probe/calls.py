"""What passes between the hot path and the ledger: a native call, and how to handle one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ws_guard.sizing import HeadDims

NativeFunction = Callable[..., Any]
#: Makes a native call in another way than as it came: `handling(native, args)`.
Handling = Callable[[NativeFunction, "tuple[Any, ...]"], Any]

#: What tells shapes apart: all arguments that decide a carve and may change between calls.
Key = tuple[Any, ...]


class NativeCall(NamedTuple):
    """The arguments of a native call that matter. Sizes in bytes, lengths in tokens."""

    batch: int
    heads: int
    q_len: int
    lse: bool
    sm_count: int
    workspace_bytes: int
    workspace_address: int
    dims: HeadDims
    max_kv_len: int | None
    sum_q: int
    counter_buffer_bytes: int | None


class Positions(Protocol):
    """Where an op keeps its arguments."""

    def read(self, args: tuple[Any, ...]) -> NativeCall:
        """What matters of a call. Only shapes, sizes and addresses are looked at."""

    def with_workspace(self, args: tuple[Any, ...], workspace: Any) -> tuple[Any, ...]:  # noqa: ANN401
        """The same call on another workspace, a tensor of uint8."""


class Alike(NamedTuple):
    """What the next call is compared with; `workspace` is a weak reference to the tensor."""

    batch: Any
    q_len: Any
    workspace_bytes: Any
    no_lse: bool
    top_k: Any
    shape: Any
    workspace: Callable[[], Any]
    address: int


#: `Alike`, then where a call like it is counted: the slot's words and a place in them, the slot's
#: times by lane.
Run = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any]

#: No call is like this one.
NO_RUN: Run = (object(), 0, 0, None, 0, None, None, 0, None, 0, None)


class Known(NamedTuple):
    """A harmless shape, for the hot path: its run, its ring word without the time, and the word
    that sums its batches (0: none, its row is its own)."""

    run: Run
    ring_code: int
    sum_word: int
