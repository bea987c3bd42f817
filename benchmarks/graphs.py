"""Added CPU time on a real card: `python -m benchmarks.graphs [--json]`.

FlashInfer's XQA decode, a replay of a graph with 32 of them, and a decode loop of 32 layers, each
with and without the probe in turn, so that a busy machine slows both alike. Times are of the CPU:
the GPU is waited for outside of them, but for the tokens. Needs a GPU that XQA runs on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import ws_guard
from ws_guard.probe.loading import loaded_modules
from ws_guard.sizing import XQA_OPS

XQA = XQA_OPS["xqa"]
ROUNDS, CALLS, REPLAYS = 600, 50, 10
LOOPS, LAYERS, STEPS = 40, 32, 10
HEADS, KV_HEADS, HEAD_DIM, PAGE, LENGTH, BATCH = 64, 8, 128, 64, 2048, 16

Action = Callable[[], object]


class Decode:
    """One attention layer of a decode step, bf16."""

    def __init__(self) -> None:
        import torch

        options: Any = {"device": "cuda", "dtype": torch.bfloat16}
        pages = LENGTH // PAGE
        self.query = torch.randn(BATCH, HEADS, HEAD_DIM, **options)
        self.out = torch.empty_like(self.query)
        self.cache = tuple(
            torch.randn(BATCH * pages, KV_HEADS, PAGE, HEAD_DIM, **options) for _ in range(2)
        )
        self.table = torch.arange(BATCH * pages, device="cuda", dtype=torch.int32).view(BATCH, -1)
        self.lengths = torch.full((BATCH,), LENGTH, device="cuda", dtype=torch.int32)
        self.workspace = torch.zeros(64 << 20, device="cuda", dtype=torch.uint8)
        self.weight = torch.randn(HEADS * HEAD_DIM, HEADS * HEAD_DIM, **options)

    def attend(self) -> None:
        """The native call, by FlashInfer's public function."""
        import flashinfer.decode

        flashinfer.decode.trtllm_batch_decode_with_kv_cache(
            query=self.query,
            kv_cache=self.cache,
            workspace_buffer=self.workspace,
            block_tables=self.table,
            seq_lens=self.lengths,
            max_seq_len=LENGTH,
            bmm1_scale=HEAD_DIM**-0.5,
            bmm2_scale=1.0,
            kv_layout="HND",
            out=self.out,
        )

    def step(self) -> None:
        """A step of 32 layers: attention, and a projection of its output."""
        for _ in range(LAYERS):
            self.attend()
            self.query = (self.out.view(BATCH, -1) @ self.weight).view_as(self.query)


def cpu_ns(action: Action, calls: int) -> float:
    """Nanoseconds of CPU per call; the queue of the GPU is empty before and after."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(calls):
        action()
    took = time.perf_counter_ns() - start
    torch.cuda.synchronize()
    return took / calls


def tokens_per_second(layer: Decode) -> float:
    """Of a decode loop, the GPU's time included."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        layer.step()
    torch.cuda.synchronize()
    return BATCH * STEPS / (time.perf_counter() - start)


def capture(layer: Decode) -> Any:  # noqa: ANN401 - a torch.cuda.CUDAGraph
    """A graph of 32 native calls."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAYERS):
            layer.attend()
    return graph


class Switch:
    """Takes the probe out of the way and puts it back: two attributes, as an install would."""

    def __init__(self, layer: Decode, board: str) -> None:
        import torch

        (module,) = (each for each in loaded_modules() if getattr(each, XQA, None) is not None)
        self._module, self._graph_class = module, torch.cuda.CUDAGraph
        self._alone = getattr(module, XQA), vars(self._graph_class)["replay"]
        self.probe = ws_guard.install(board=board)
        self._watched = getattr(module, XQA), vars(self._graph_class)["replay"]
        self.graph = capture(layer)
        for _ in range(8):
            layer.attend()
            self.graph.replay()

    def turn(self, watched: bool) -> None:
        """With the probe from now on, or without."""
        native, replay = self._watched if watched else self._alone
        setattr(self._module, XQA, native)
        self._graph_class.replay = replay


def run() -> dict[str, Any]:
    """All figures of one run: medians of paired rounds, and how far their ratios spread."""
    import torch

    layer = Decode()
    layer.attend()
    with tempfile.TemporaryDirectory() as board:
        switch = Switch(layer, board)
        measures: dict[str, tuple[int, Callable[[], float]]] = {
            "call": (ROUNDS, lambda: cpu_ns(layer.attend, CALLS)),
            "replay": (ROUNDS, lambda: cpu_ns(switch.graph.replay, REPLAYS)),
            "tokens": (LOOPS, lambda: tokens_per_second(layer)),
        }
        result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        for name, (rounds, measure) in measures.items():
            result[name] = compare(switch, rounds, measure)
        switch.turn(watched=True)
        switch.probe.uninstall()
    return result


def compare(switch: Switch, rounds: int, measure: Callable[[], float]) -> dict[str, Any]:
    """The same measured with the probe and without, in turn."""
    pairs = []
    for number in range(rounds):
        pair = {}
        for watched in (True, False) if number % 2 else (False, True):
            switch.turn(watched)
            pair[watched] = measure()
        pairs.append((pair[True], pair[False]))
    ratios = [watched / alone for watched, alone in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "with": statistics.median(watched for watched, _ in pairs),
        "without": statistics.median(alone for _, alone in pairs),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [low, high],
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    try:
        import flashinfer.decode  # noqa: F401 - what is measured
        import torch
    except ImportError as error:
        sys.exit(f"benchmarks.graphs needs torch and FlashInfer: {error}")
    if not torch.cuda.is_available():
        sys.exit("benchmarks.graphs needs an NVIDIA GPU: there is no CUDA device")
    result = run()
    if as_json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['gpu']}, torch {result['torch']}")
    units = {"call": "CPU ns per XQA call", "replay": "CPU ns per replay", "tokens": "tokens/s"}
    for name, unit in units.items():
        one = result[name]
        low, high = one["ratio_quartiles"]
        print(
            f"{unit:22} with {one['with']:12,.0f}  without {one['without']:12,.0f}"
            f"  ratio {one['ratio']:.3f} ({low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
