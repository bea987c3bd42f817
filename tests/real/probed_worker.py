"""A worker with the probe that makes steps: `probed_worker.py BOARD LIBRARY ROWS...`.

It is engine 0, rank 3, and says of each step that it is done, or that it was raised. FlashInfer's
own refusal kills it on the spot. After its steps it waits for the end of its input.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ws_guard
from ws_guard import launcher
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES

if TYPE_CHECKING:
    import torch


def step(batch: int, buffer: torch.Tensor) -> str:
    """Make a step of so many rows; what became of it."""
    from flashinfer_calls import PUBLIC_CALLS, Shape

    try:
        PUBLIC_CALLS["sparse_mla"].build(Shape(batch, lse=True), buffer)()
    except ws_guard.WorkspaceOverflowError:
        return "raised"
    except RuntimeError:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def main(board: str, library: str, *rows: str) -> None:
    """Install the probe, and make the steps in one workspace of vLLM's default size."""
    ws_guard.install(board=board, engine="0", rank=3)
    from flashinfer_calls import workspace

    with launcher.on_cpu(Path(library)):
        buffer = workspace(DEFAULT_WORKSPACE_BYTES)
        for batch in rows:
            print(batch, step(int(batch), buffer), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
