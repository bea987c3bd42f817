"""A capture that fails, and calls around it: `failed_capture.py [BOARD]` prints the counts."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

import card
from xqa_decode import Decode, buffer, counts, read_slot

import ws_guard


def main(board: Path) -> int:
    """0 where the capture failed, as it should."""
    import torch

    ws_guard.install(board=str(board))
    step, workspace = Decode(16, 2048), buffer()
    step.run(workspace)
    failed = True
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        step.run(workspace)
        torch.cuda.synchronize()  # not permitted while a stream is captured
        failed = False
    step.run(workspace)
    torch.cuda.synchronize()
    for batch, modes in counts(read_slot(board).rows).items():
        print(batch, *modes)
    return 0 if failed else 1


if __name__ == "__main__":
    card.require()
    sys.exit(main(Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())))
