"""Cost of a pass over a large log: `python -m benchmarks.explain [--json] [--mib 477]`.

`ws-guard explain` as a process, from its start to its answer, against `grep -F` for one of the
messages over the same file, one after the other, round after round; the fastest of each counts.
The file is read once before, so that both find it in memory.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROUNDS = 7
#: 500,000,000 bytes.
DEFAULT_MIB = 477
_MIB = 1 << 20
MESSAGE = "Buffer overflow when allocating memory for"
CRASH = (
    "(Worker_TP3_DCP3 pid=903) ERROR 07-05 12:00:01 [multiproc_executor.py:822] RuntimeError: "
    "Error in function 'aligned_alloc' at /workspace/include/flashinfer/allocator.h:49: "
    "Buffer overflow when allocating memory for trtllm_gen_softmax_workspace with size 1611661312 "
    "and alignment 16, but only 404750336 bytes available in AlignedAllocator. "
    "Increase the workspace buffer size.\n"
)
_TRACE = (
    "(Worker_TP{a}_DCP{a} pid={b}) ERROR 07-05 12:{c:02d}:01 [multiproc_executor.py:{b}]   File "
    '"/usr/local/lib/python3.12/dist-packages/vllm/v1/worker/gpu_model_runner.py", line {b}\n'
)
_ACCESS = (
    '(APIServer pid=1) INFO:     127.0.0.1:{b} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)
_STATISTICS = (
    "(EngineCore pid=123) INFO 07-05 12:00:{c:02d} [loggers.py:123] Engine 000: Avg prompt "
    "throughput: {b}.{a} tokens/s, Running: {a} reqs, Waiting: 0 reqs, GPU KV cache usage: "
    "1.{a}%, Prefix cache hit rate: 0.0%, memory available\n"
)
_SHAPES = (_TRACE, _ACCESS, _STATISTICS)


def write_log(path: Path, size: int) -> None:
    """A log of an engine of eight ranks, with a crash at its end; `size` in bytes."""
    chance = random.Random(1)  # noqa: S311 - no secret
    lines = [
        shape.format(a=number % 8, b=chance.randrange(60_000), c=number % 60)
        for number in range(200)
        for shape in _SHAPES
    ]
    with path.open("w") as log:
        written = 0
        while written < size - len(CRASH):
            written += log.write("".join(chance.choices(lines, k=1_000)))
        log.write(CRASH)


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)  # noqa: S603 - commands of ours
    return time.perf_counter() - start


def measure(path: Path) -> Iterator[tuple[float, float]]:
    """Seconds of grep and of ours, round after round."""
    grep = shutil.which("grep") or "grep"
    for _ in range(ROUNDS + 1):
        ours = _seconds([sys.executable, "-m", "ws_guard", "explain", str(path)])
        yield _seconds([grep, "-F", MESSAGE, str(path)]), ours


def run(mib: int) -> dict[str, float]:
    """The figures for a log of so many MiB."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "engine.log"
        write_log(path, mib * _MIB)
        rounds = list(measure(path))[1:]
        size = path.stat().st_size
    grep, ours = (min(times) for times in zip(*rounds, strict=True))
    # Linux counts in KiB; this process is far smaller than its children.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {
        "log_bytes": size,
        "grep_s": grep,
        "explain_s": ours,
        "explain_vs_grep": ours / grep,
        "explain_peak_mib": peak,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mib", type=int, default=DEFAULT_MIB)
    asked = parser.parse_args()
    figures = run(asked.mib)
    if asked.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:>18}{value:>16,.4g}")


if __name__ == "__main__":
    main()
