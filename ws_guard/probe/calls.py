"""What passes between the hot path, the ledger and the other parts of the probe."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple, Protocol

from ws_guard.foreign import Tensor
from ws_guard.sizing import HeadDims

from .hot import Front

NativeFunction = Callable[..., Any]
#: Makes a native call in another way than as it came: `handling(native, args)`.
Handling = Callable[[NativeFunction, "tuple[Any, ...]"], Any]

#: What tells shapes apart: all arguments that decide a carve and may change between calls.
Key = tuple[Any, ...]

#: What the hot path compares the next call with.
Like = tuple[Any, Any, Any, Any, Any, Any, Any, Any]

#: That, then where a call like it is counted: the slot's words, a place in them, and the slot's
#: times by lane.
Run = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any]

#: No call is like this one.
NO_RUN: Run = (object(), None, None, None, None, None, None, None, None, None, None)


class NativeCall(NamedTuple):
    """The arguments of a native call that matter. Sizes in bytes, lengths in tokens.

    The workspace is the one that the call uses. `kv_heads` and `sm90_fp8` matter to XQA alone.
    """

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
    kv_heads: int | None = None
    sm90_fp8: bool | None = None


class Arguments(Protocol):
    """Where an op keeps its arguments."""

    def read(self, args: tuple[Any, ...]) -> NativeCall:
        """What matters of a call. Only shapes, sizes and addresses are looked at."""

    def with_workspace(self, args: tuple[Any, ...], workspace: Tensor) -> tuple[Any, ...]:
        """The same call on another workspace, a tensor of uint8."""


class Met(NamedTuple):
    """A call that has come to the ledger. Sizes in bytes.

    `like` is what the hot path may compare the next call with; None where it must not count any by
    itself. `front` is the same for its part in C. `workspace`, `address` and `bytes` are those that
    the caller brought.
    """

    key: Key
    like: Like | None
    front: Front
    batch: int
    lse: bool
    workspace: Any
    address: int
    bytes: int
    args: tuple[Any, ...]
    where: Arguments

    def read(self) -> NativeCall:
        """What matters of the call as it will be made."""
        return self.where.read(self.args)


class Row(NamedTuple):
    """Where calls of a shape are counted: its number in the slot, and the first of its words."""

    number: int
    first_word: int
    folded: bool


class Known(NamedTuple):
    """A harmless shape, for the hot path.

    Its run, the same for the part in C, its ring word without the time, the word that sums its
    batches (0: none, its row is its own), and for the part in C the addresses where it counts:
    those stay what they are as long as the slot does.
    """

    run: Run
    front: Front
    ring_code: int
    sum_word: int
    addresses: tuple[Any, ...]


def whole_at(args: tuple[Any, ...], at: int) -> int:
    """A whole number among the arguments; TypeError for anything else.

    A tensor in its place would be compared, which asks CUDA for its value, and kept alive in a row.
    """
    value = args[at]
    if not isinstance(value, Integral):
        raise TypeError(f"{type(value).__name__} at {at} where a whole number was expected")
    return int(value)


def as_elements(memory: Tensor, brought: Tensor) -> Tensor:
    """A tensor of uint8 as elements like those that a caller brought: as many whole ones as fit."""
    return memory[: memory.numel() // brought.itemsize * brought.itemsize].view(brought.dtype)
