"""A worker of one rank with FlashInfer's own Python and launcher on the CPU: worker.py PART BOARD.

It attaches, plays its part, says so, and waits for the end of its standard input.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "real"))

from flashinfer_calls import PUBLIC_CALLS, TOP_K, Shape, workspace

import ws_guard
from ws_guard import launcher

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
DEFAULT_WORKSPACE_BYTES = 394 * MIB


def killed(board: str) -> None:
    """394 MiB, 64 heads: the step of 3,081 tokens is refused, and the same moment is the last."""
    _attach(board, rank=3)
    try:
        for rows in (512, 3_080, 3_081):
            _call(rows, workspace(DEFAULT_WORKSPACE_BYTES))
    except RuntimeError:
        os.kill(os.getpid(), signal.SIGKILL)


def successor(board: str) -> None:
    """The same rank once more, with what the plan recommends."""
    plan = _plan(heads=64)
    _attach(board, rank=3, plan=plan)
    _call(3_081, workspace(plan.workspace_bytes))


def sized(board: str) -> None:
    """As recommended for 128 heads and 32,768 tokens: all but 394 MiB is used, as was planned."""
    plan = _plan(heads=128, max_num_batched_tokens=32_768)
    _attach(board, rank=0, plan=plan)
    _call(32_768, workspace(plan.workspace_bytes), heads=128)


def overrun(board: str) -> None:
    """74 rows in 12 MiB: the counters take 8, and more than the 4 that are left are written."""
    from flashinfer.autotuner import autotune

    _attach(board, rank=0)
    with autotune(True):
        PUBLIC_CALLS["decode"].build(Shape(8), workspace(64 * MIB))()
    call = PUBLIC_CALLS["sparse_mla"].build(Shape(74, 64), workspace(12 * MIB))
    functools.partial(call, max_seq_len=TOP_K)()


def _plan(**asked: Any) -> Any:
    asked = {"tp": 8, "dcp": 8, "max_num_batched_tokens": 16_384, **asked}
    size = ws_guard.plan(**asked, workspace_bytes=DEFAULT_WORKSPACE_BYTES)
    return ws_guard.plan(**asked, workspace_bytes=size.recommended_workspace_bytes)


def _attach(board: str, rank: int, plan: Any = None) -> None:
    ws_guard.install(board=board, engine="0", rank=rank, plan=plan)


def _call(rows: int, buffer: Any, heads: int = 64) -> None:
    PUBLIC_CALLS["sparse_mla"].build(Shape(rows, heads, lse=True), buffer)()


PARTS: dict[str, Callable[[str], None]] = {
    part.__name__: part for part in (killed, successor, sized, overrun)
}


def main(part: str, board: str) -> None:
    """Play a part."""
    with launcher.on_cpu(launcher.build(launcher.installed_flashinfer_root())):
        PARTS[part](board)
        print("played", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
