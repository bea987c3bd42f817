"""A painted guard zone behind a provisioned workspace, and the look at it.

What a kernel writes past its workspace lands here, and stays: no order with the engine's streams is
needed to see it. The look never asks CUDA anything, since a question from another thread ends a
graph capture (`Event.query`, synchronize, an allocation): the GPU counts destroyed words on a
stream of its own and writes count and number of the look into pinned memory, where the next tick
reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ws_guard.foreign import Tensor

ZONE_BYTES = 1 << 20
_PATTERN = 0x5AC3_96A5_3C69_A55A
_WORD = 8
#: A zone is as many lines of 256 words, each of which is summed at once.
LINE_BYTES = 256 * _WORD


class Look(NamedTuple):
    """What a look found: its number, counted from 1, and how many bytes were destroyed."""

    number: int
    destroyed_bytes: int


class Zone(Protocol):
    """A guard zone on some device."""

    def look(self) -> None:
        """Have the zone looked at; the answer comes later."""

    def answer(self) -> Look:
        """The newest answer; number 0 before the first."""

    def repaint(self) -> None:
        """Paint it again, so that further overruns show."""


def paint(memory: Tensor) -> Zone:
    """Make a zone of `memory`. Allocates all that looking at it takes; waits for the GPU."""
    return _CudaZone(memory) if memory.is_cuda else _HostZone(memory)


class _HostZone:
    """On a CPU the answer is there at once."""

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._answer = Look(0, 0)
        self.repaint()

    def look(self) -> None:
        destroyed = int((self._memory != _PATTERN).sum())
        self._answer = Look(self._answer.number + 1, destroyed * _WORD)

    def answer(self) -> Look:
        return self._answer

    def repaint(self) -> None:
        self._memory.fill_(_PATTERN)


class _CudaZone:
    """Every buffer is had at the start and no kernel takes another: an allocation in the middle of
    somebody's capture may ask CUDA what it must not be asked."""

    def __init__(self, memory: Tensor) -> None:
        torch: Any = sys.modules["torch"]
        self._torch, self._memory = torch, memory
        self._stream = torch.cuda.Stream(memory.device)
        words = {"dtype": torch.int64, "device": memory.device}
        # Summed in two steps, each of which one block of threads does without a buffer.
        self._lines = memory.numel() * _WORD // LINE_BYTES
        self._differs = torch.zeros(memory.numel(), **words)
        self._of_line = torch.zeros(self._lines, **words)
        #: Destroyed words, and the number of the look.
        self._found = torch.zeros(2, **words)
        self._told = torch.zeros(2, dtype=torch.int64, pin_memory=True)
        torch.cuda.synchronize(memory.device)
        # The first times bring in whatever kernels it takes.
        self._on_stream(self._paint)
        self.look()
        self._stream.synchronize()

    def look(self) -> None:
        self._on_stream(self._compare)

    def answer(self) -> Look:
        destroyed, number = self._told.tolist()
        return Look(number, destroyed * _WORD)

    def repaint(self) -> None:
        self._on_stream(self._paint)

    def _on_stream(self, work: Callable[[], object]) -> None:
        with self._torch.cuda.device(self._memory.device), self._torch.cuda.stream(self._stream):
            work()

    def _paint(self) -> None:
        self._memory.fill_(_PATTERN)

    def _compare(self) -> None:
        torch = self._torch
        torch.ne(self._memory, _PATTERN, out=self._differs)
        torch.sum(self._differs.view(self._lines, -1), dim=1, out=self._of_line)
        torch.sum(self._of_line, dim=0, keepdim=True, out=self._found[:1])
        self._found[1:].add_(1)
        # One copy: count and number never come apart.
        self._told.copy_(self._found, non_blocking=True)
