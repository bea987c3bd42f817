"""Added time per native call: `python -m benchmarks.probe [--json]`.

`probe_ns` is the probe as it is installed, `probe_python_ns` what it is without its extension. Both
are calls like the one before, as the layers of a model make them; `alternating` are calls of two
shapes in turn, `distinct` of 16,384 batches in turn, where each is another than the one before.

A 31-argument call with real torch tensors goes through each wrapper in turn, round after round, so
that a busy machine slows all of them alike; the fastest round of each counts. `direct_ns` is the
bare call, the others are what a wrapper adds to it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ws_guard.board import open_board
from ws_guard.probe import hot
from ws_guard.probe.ledger import Ledger
from ws_guard.probe.native_op import Positions, instrument
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import LAYOUTS, OPS

OP = OPS["decode"]
ARGUMENTS = 31
ROUNDS, CALLS = 30, 20_000
DISTINCT = 16_384
# Argument positions of FlashInfer 0.6.15.post1, the release with 31.
WHERE = Positions(
    arguments=ARGUMENTS, out=0, query=2, workspace=5, counter=6, q_len=9, kv_len=10, batch=16,
    sm_count=19, workspace_size=21, lse=28, top_k=18, sparse_indices=None,
)  # fmt: skip

Native = Callable[..., Any]


def native(*_args: object) -> None:
    """Stands for the native function: its cost is not the question."""


def placed(named: Mapping[int | None, Any]) -> tuple[Any, ...]:
    """Arguments by their positions; None for all others."""
    return tuple(named.get(position) for position in range(ARGUMENTS))


def decode_step(batch: int) -> dict[int | None, Any]:
    """The numbers among the arguments of a decode step of so many rows under DCP."""
    return {
        WHERE.q_len: 1,
        WHERE.kv_len: 8192,
        WHERE.batch: batch,
        WHERE.top_k: 2048,
        WHERE.sm_count: 148,
        WHERE.workspace_size: 394 << 20,
    }


def arguments() -> tuple[Any, ...]:
    """The arguments of one decode step of 64 rows, with real torch tensors."""
    import torch

    tensors: dict[int | None, Any] = {
        WHERE.out: torch.empty(64, 64, 512),
        WHERE.query: torch.empty(64, 64, 576),
        WHERE.workspace: torch.empty(394 << 20, dtype=torch.uint8),
        WHERE.counter: torch.zeros(4096, dtype=torch.int32),
        WHERE.lse: torch.empty(64, 64),
    }
    return placed(decode_step(64) | tensors)


def noop_wrapper(function: Native) -> Native:
    """The least that any wrapper costs."""

    def wrapper(*args: object) -> object:
        return function(*args)

    return wrapper


def probe(function: Native, board: str) -> Native:
    """Ours, on a real board."""
    recorder = Recorder(open_board(board), LAYOUTS["C"], list(OPS.values()), {})
    return instrument(function, WHERE, Ledger(recorder, OP))


@contextlib.contextmanager
def without_extension(module: Any) -> Iterator[None]:  # noqa: ANN401 - a module
    """`module` is `ws_guard.probe.hot`: probes made meanwhile are pure Python."""
    held = module._hot, module.Lane, module.Account
    module._hot, module.Lane, module.Account = None, module.PlainLane, module.PlainAccount
    try:
        yield
    finally:
        module._hot, module.Lane, module.Account = held


def prometheus_client(function: Native) -> Native:
    """What one would write instead: a counter, two gauges and a histogram."""
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    registry = CollectorRegistry()
    labels = ["op"]
    calls = Counter("calls", "calls", labels, registry=registry).labels(OP)
    need = Gauge("need_bytes", "need", labels, registry=registry).labels(OP)
    batch = Gauge("batch", "batch", labels, registry=registry).labels(OP)
    buckets = [4**power for power in range(9)]
    sizes = Histogram("size", "size", labels, registry=registry, buckets=buckets).labels(OP)

    def wrapper(*args: Any) -> object:  # noqa: ANN401 - of a native op
        rows = args[WHERE.batch]
        calls.inc()
        need.set(8 * args[WHERE.query].shape[1] * rows * 256 + (1 << 20))
        batch.set(rows)
        sizes.observe(rows)
        return function(*args)

    return wrapper


def shapes(args: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """The same call with so many batches; without LSE and with room to count none is refused."""
    import torch

    same: dict[int | None, Any] = dict(enumerate(args))
    same |= {WHERE.counter: torch.zeros(16 << 20, dtype=torch.int32), WHERE.lse: None}
    return [placed(same | {WHERE.batch: batch}) for batch in range(1, count + 1)]


def in_turn(functions: dict[str, Native], calls: list[tuple[Any, ...]]) -> dict[str, float]:
    """Nanoseconds per call where each is of another shape than the one before."""
    rounds = max(1, CALLS // len(calls))
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(10):
        for name, function in functions.items():
            start = time.perf_counter_ns()
            for _ in range(rounds):
                for call in calls:
                    function(*call)
            spent = (time.perf_counter_ns() - start) / (rounds * len(calls))
            best[name] = min(best[name], spent)
    return best


def measure(wrappers: dict[str, Native], args: tuple[Any, ...]) -> dict[str, float]:
    """Nanoseconds per call of each, the fastest of interleaved rounds."""
    best = dict.fromkeys(wrappers, float("inf"))
    for _ in range(ROUNDS):
        for name, function in wrappers.items():
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                function(*args)
            best[name] = min(best[name], (time.perf_counter_ns() - start) / CALLS)
    return best


def _multiprocess_mode() -> float:
    """Added time of the prometheus_client wrapper in multiprocess mode, in its own process."""
    script = (
        "from benchmarks.probe import *; a = arguments(); "
        "m = measure({'direct': native, 'it': prometheus_client(native)}, a); "
        "print(m['it'] - m['direct'])"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(  # noqa: S603 - ourselves
            [sys.executable, "-c", script],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return float(done.stdout)


def run() -> dict[str, float]:
    """All figures of one run."""
    args = arguments()
    with tempfile.TemporaryDirectory() as board, tempfile.TemporaryDirectory() as other:
        wrappers = {
            "direct": native,
            "noop_wrapper": noop_wrapper(native),
            "probe": probe(native, board),
        }
        with without_extension(hot):
            wrappers["probe_python"] = probe(native, other)
        wrappers["prometheus_client"] = prometheus_client(native)
        best = measure(wrappers, args)
        result = {"direct_ns": best.pop("direct")}
        result |= {f"{name}_ns": value - result["direct_ns"] for name, value in best.items()}
        for row, count in (("alternating", 2), ("distinct", DISTINCT)):
            turns = in_turn(wrappers, shapes(args, count))
            for name in ("probe", "probe_python", "prometheus_client"):
                result[f"{row}_{name}_ns"] = turns[name] - turns["direct"]
    result["prometheus_multiprocess_ns"] = _multiprocess_mode()
    result["probe_vs_prometheus_client"] = result["probe_ns"] / result["prometheus_client_ns"]
    result["probe_vs_noop"] = result["probe_ns"] / result["noop_wrapper_ns"]
    python, client = result["probe_python_ns"], result["prometheus_client_ns"]
    result["probe_python_vs_prometheus_client"] = python / client
    result["probe_python_vs_noop"] = python / result["noop_wrapper_ns"]
    return result


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    result = run()
    if as_json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name:<34}{value:>10.1f}" if name.endswith("_ns") else f"{name:<34}{value:>10.2f}")


if __name__ == "__main__":
    main()
