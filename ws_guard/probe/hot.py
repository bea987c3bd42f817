"""The hot path in C where it was built (`_hot.c`), else Python alone: the same counts, slower.

A worker needs no compiler and no build of ours: without the extension nothing but the cost differs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ws_guard.foreign import CudaGraph, Foreign

if TYPE_CHECKING:
    from .calls import NativeFunction


def _load() -> Foreign:
    try:
        return import_module(f"{__package__}._hot")
    except ImportError:
        return None


_hot = _load()


class Front(NamedTuple):
    """What the C side compares a call with: whole numbers among the arguments, whether one is None,
    and what is seen of tensors (a shape's dims, an address, a size in bytes)."""

    numbers: tuple[int, ...]
    is_none: bool
    seen: tuple[int, ...]


class FrontPositions(NamedTuple):
    """Where an op keeps what a `Front` is made of; `tensors` says what is looked at of each."""

    arguments: int
    numbers: tuple[int, ...]
    is_none: int
    tensors: tuple[tuple[int, str], ...]


class PlainLane:
    """Stands for `_hot.Lane` where it was not built: it knows no shapes."""

    #: The current run's ring word, without its time; 0: the next call begins one.
    ring_code = 0

    def forget(self) -> None:
        """Nothing was known but the current run."""
        self.ring_code = 0


class PlainAccount:
    """Stands for `_hot.Account` where it was not built."""

    is_current = 0

    def hold(self, _additions: tuple[tuple[int, int], ...], _moment: int) -> None:
        """Only Python adds."""

    def forget(self) -> None:
        """Nothing was held."""


Lane: Any = PlainLane if _hot is None else _hot.Lane
Account: Any = PlainAccount if _hot is None else _hot.Account


def is_built() -> bool:
    """Whether the extension is there."""
    return _hot is not None


def in_front_of(
    probe: NativeFunction,
    native: NativeFunction,
    failed: Callable[[Exception], object],
    lane: PlainLane | Foreign,
    positions: FrontPositions,
) -> NativeFunction:
    """A function that counts calls of shapes that `lane` knows, and leaves others to `probe`."""
    if _hot is None:
        return probe
    what = {"shape": _hot.SHAPE, "data_ptr": _hot.DATA_PTR, "nbytes": _hot.NBYTES}
    counted: NativeFunction = _hot.Counted(
        native,
        probe,
        failed,
        lane,
        positions.arguments,
        positions.numbers,
        positions.is_none,
        tuple(at for at, _ in positions.tensors),
        tuple(what[kind] for _, kind in positions.tensors),
    )
    return counted


def replaying(
    launch: Callable[[CudaGraph], Any], slow: Callable[[CudaGraph], Any]
) -> Callable[[CudaGraph], Any]:
    """A method that counts a replay itself where that is all, and leaves others to `slow`."""
    if _hot is None:
        return slow
    method: Callable[[CudaGraph], Any] = _hot.Replay(launch, slow)
    return method


def counting(slow: Callable[[CudaGraph], None]) -> Callable[[CudaGraph], None]:
    """The same as a hook, which launches nothing."""
    if _hot is None:
        return slow
    count = _hot.count_replay

    def hook(graph: CudaGraph) -> None:
        if not count(graph):
            slow(graph)

    return hook
