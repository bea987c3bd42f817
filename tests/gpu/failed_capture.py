"""A capture that fails, and calls around it: `python failed_capture.py BOARD` prints the counts."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch
from xqa_decode import Decode, buffer, counts, read_slot

import ws_guard

board = Path(sys.argv[1])
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
sys.exit(0 if failed else 1)
