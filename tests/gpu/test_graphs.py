"""Real graphs of real XQA calls: captured and replayed calls are counted exactly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from xqa_decode import Decode, buffer, counts, read_slot

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("xqa_card", "probe")]
REPLAYS = 1000


def test_replays_of_one_graph_are_counted_exactly(board: Path) -> None:
    import torch

    step, workspace = Decode(16, 2048), buffer()
    step.run(workspace)  # warm-up, eager
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            step.run(workspace)
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    assert counts(read_slot(board).rows) == {16: (1, 3, 3 * REPLAYS)}
    assert read_slot(board).probe_errors == 0


def test_eager_calls_between_replays_stay_eager(board: Path) -> None:
    import torch

    captured, eager, workspace = Decode(16, 2048), Decode(64, 2048), buffer()
    captured.run(workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.run(workspace)
    for _ in range(REPLAYS):
        graph.replay()
        eager.run(workspace)
        captured.run(workspace)
    torch.cuda.synchronize()
    seen = counts(read_slot(board).rows)
    assert seen == {16: (1 + REPLAYS, 1, REPLAYS), 64: (REPLAYS, 0, 0)}


def test_two_graphs_that_share_a_pool(board: Path) -> None:
    import torch

    steps, workspace = [Decode(16, 2048), Decode(32, 2048)], buffer()
    graphs = []
    for step in steps:
        step.run(workspace)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None):
            step.run(workspace)
        graphs.append(graph)
    stored = graphs[1].replay  # as vLLM's breakable graphs keep it
    for number in range(REPLAYS):
        graphs[0].replay()
        if number % 2:
            stored()
    torch.cuda.synchronize()
    assert counts(read_slot(board).rows) == {16: (1, 1, REPLAYS), 32: (1, 1, REPLAYS // 2)}


def test_a_graph_captured_again_counts_its_new_calls(board: Path) -> None:
    import torch

    first, second, workspace = Decode(16, 2048), Decode(32, 2048), buffer()
    for step in (first, second):
        step.run(workspace)
    graph = torch.cuda.CUDAGraph()
    for step in (first, second):
        with torch.cuda.graph(graph):
            step.run(workspace)
        graph.replay()
        torch.cuda.synchronize()
        graph.reset()
    assert counts(read_slot(board).rows) == {16: (1, 1, 1), 32: (1, 1, 1)}


def test_a_failed_capture_leaves_later_calls_eager(board: Path) -> None:
    """In a process of its own: torch's random numbers do not recover from it."""
    program = Path(__file__).with_name("failed_capture.py")
    done = subprocess.run(
        [sys.executable, program, board.with_name("other")], stdout=subprocess.PIPE, text=True
    )
    # Eager before and after the capture, one call captured, and nothing replayed.
    assert (done.returncode, done.stdout.split()) == (0, ["16", "2", "1", "0"])
