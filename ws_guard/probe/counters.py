"""Whether a counter inside a workspace is zero before the first call that uses it.

The launcher's counter and XQA's semaphores must be zero between calls; while a kernel runs they are
not. So the only moment to look is before a workspace's first call, in the order of its own stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ws_guard.foreign import Tensor

from .ticker import Ticker


class CounterCheck:
    """Looks at the head of a workspace without waiting for the GPU."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker

    def check(self, workspace: Tensor, length: int, found_dirty: Callable[[], None]) -> None:
        """Call `found_dirty` if one of the first `length` bytes is not zero.

        Off the hot path, once for each workspace, while no graph is captured. On a GPU the look is
        queued in front of the call; the answer lands in pinned memory, and the ticker reads it.
        """
        if workspace.is_cuda:
            self._check_on_gpu(workspace, length, found_dirty)
        elif not workspace.is_meta:
            import ctypes  # torch has it loaded

            # Not by torch, whose threads a forked child has lost, and waits for.
            held = min(length, workspace.numel() * workspace.itemsize)
            if ctypes.string_at(workspace.data_ptr(), held).strip(b"\0"):
                found_dirty()

    def _check_on_gpu(
        self, workspace: Tensor, length: int, found_dirty: Callable[[], None]
    ) -> None:
        torch: Any = sys.modules["torch"]
        head = workspace.detach().view(torch.uint8).flatten()[:length]
        answer = torch.zeros(2, dtype=torch.uint8, pin_memory=True)
        seen = torch.stack([head.any(), torch.ones((), dtype=torch.bool, device=head.device)])
        answer.copy_(seen.view(torch.uint8), non_blocking=True)

        def read() -> bool:
            dirty, done = answer.tolist()
            if done and dirty:
                found_dirty()
            return not done

        self._ticker.add(read)
