"""Instructions per native call: `python -m benchmarks.instructions [--json] [--record]`.

valgrind's cachegrind counts the instructions of whole processes that differ in one loop alone, so
that a busy machine changes nothing: calls like the one before, calls of two shapes in turn
(`probe_in_turn`), and replays of a graph that 32 calls were captured into. What a wrapper adds to
the bare call is told as a ratio to what a no-op wrapper adds; `--record` writes the ratios down for
the test that holds them. The tensors are stand-ins of plain Python, which cost the same everywhere:
torch would take valgrind minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("instructions.json")
CALLS = 20_000
#: A ratio may be so much above the recorded one.
TOLERANCE = 0.10
#: Ways to call, each with the one that it adds to.
MODES = {
    "noop_wrapper": "direct",
    "probe": "direct",
    "probe_python": "direct",
    "probe_in_turn": "direct",
    "replay": "launch",
}
#: What `--record` writes and the test holds.
RATIOS = ("probe_vs_noop", "probe_python_vs_noop", "probe_in_turn_vs_noop", "replay_vs_noop")
_VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
_REFERENCES = re.compile(r"I\s+refs:\s+([\d,]+)")


class StandInTensor:
    """What the probe looks at of a tensor."""

    is_cuda = False
    itemsize = 1

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def data_ptr(self) -> int:
        """An address that divides by 16."""
        return 1 << 20

    def numel(self) -> int:
        """Elements, as bytes."""
        return 1 << 20


def arguments(batch: int) -> tuple[Any, ...]:
    """The arguments of a decode step of so many rows under DCP."""
    from .probe import WHERE, decode_step, placed

    tensors: dict[int | None, Any] = {
        WHERE.out: StandInTensor(batch, 64, 512),
        WHERE.query: StandInTensor(batch, 64, 576),
        WHERE.workspace: StandInTensor(394 << 20),
        WHERE.counter: StandInTensor(4096),
        WHERE.lse: StandInTensor(batch, 64),
    }
    return placed(decode_step(batch) | tensors)


class Graph:
    """What the probe looks at of a CUDA graph: nothing but the attribute that it sets."""


def launch(_graph: object) -> None:
    """Stands for a replay: its cost is not the question."""


def replay_of(graph: Graph, board: str, layers: int = 32) -> Callable[[Graph], None]:
    """A replay under the probe, of a graph that so many calls were captured into."""
    from ws_guard.board import open_board
    from ws_guard.probe.ledger import Ledger
    from ws_guard.probe.native_op import instrument
    from ws_guard.probe.parts import Parts
    from ws_guard.probe.recorder import Recorder
    from ws_guard.sizing import LAYOUTS, OPS

    from .probe import OP, WHERE, native

    recorder = Recorder(open_board(board), LAYOUTS["C"], list(OPS.values()), {})
    parts, args = Parts.of(recorder), arguments(64)
    op = instrument(native, WHERE, Ledger(recorder, OP, parts))
    parts.graphs.begin_capture(graph)
    for _ in range(layers):
        op(*args)
    parts.graphs.end_capture(graph)
    return parts.graphs.counting(launch)


def loop(mode: str, calls: int) -> None:
    """Make so many calls in one way, after all ways were set up alike."""
    from ws_guard.probe import hot

    from .probe import native, noop_wrapper, probe, without_extension

    same, other, graph = arguments(64), arguments(32), Graph()
    with tempfile.TemporaryDirectory() as board:
        ways: dict[str, Callable[..., Any]] = {"direct": native, "launch": launch}
        ways["noop_wrapper"] = noop_wrapper(native)
        ways["probe"] = ways["probe_in_turn"] = probe(native, board)
        with without_extension(hot):
            ways["probe_python"] = probe(native, board)
        ways["replay"] = replay_of(graph, board)
        pairs = dict.fromkeys(ways, (same, same))
        pairs["probe_in_turn"] = same, other
        pairs["launch"] = pairs["replay"] = (graph,), (graph,)
        for way, function in ways.items():
            one, two = pairs[way]
            for _ in range(10):
                function(*one)
                function(*two)
        function, (one, two) = ways[mode], pairs[mode]
        for _ in range(calls // 2):
            function(*one)
            function(*two)


def in_process(mode: str, calls: int, bytecode: str, *under: str) -> str:
    """What a process that makes so many calls says on standard error; it runs under `under`.

    `bytecode` is the folder of what was compiled: others that write in the tree have no say.
    """
    module = __spec__.name if __spec__ else "benchmarks.instructions"
    environ = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPYCACHEPREFIX": bytecode}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(  # noqa: S603 - ourselves
        [*under, sys.executable, "-m", module, "--loop", mode, str(calls)],
        cwd=RECORD.parents[1],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"no calls were made: {done.stderr.strip()[-400:]}")
    return done.stderr


def count(mode: str, calls: int, bytecode: str) -> int:
    """Instructions of a process that makes so many calls."""
    told = in_process(mode, calls, bytecode, *_VALGRIND)
    found = _REFERENCES.search(told)
    if found is None:
        raise RuntimeError(f"valgrind could not count: {told.strip()[-400:]}")
    return int(found[1].replace(",", ""))


def run() -> dict[str, float]:
    """Instructions per call, and the ratios."""
    with tempfile.TemporaryDirectory() as bytecode, ThreadPoolExecutor(os.cpu_count()) as pool:
        # This one compiles everything, those that are counted nothing.
        in_process("direct", 0, bytecode)
        nothing = pool.submit(count, "direct", 0, bytecode)
        modes = {*MODES, *MODES.values()}
        totals = {mode: pool.submit(count, mode, CALLS, bytecode) for mode in modes}
        calls = {mode: (it.result() - nothing.result()) / CALLS for mode, it in totals.items()}
    added = {mode: calls[mode] - calls[bare] for mode, bare in MODES.items()}
    result = {"direct_instructions": calls["direct"], "launch_instructions": calls["launch"]}
    result |= {f"{mode}_instructions": much for mode, much in added.items()}
    noop = added["noop_wrapper"]
    return result | {ratio: added[ratio.removesuffix("_vs_noop")] / noop for ratio in RATIOS}


def is_possible() -> bool:
    """Whether valgrind is there."""
    return shutil.which("valgrind") is not None


def python_version() -> str:
    """What the record is by: interpreters differ, and so does what they make of a call."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def recorded() -> dict[str, float] | None:
    """The recorded ratios of this Python; None if there are none."""
    known: dict[str, dict[str, float]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return known.get(python_version())


def record(result: dict[str, float]) -> None:
    """Write the ratios down."""
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    known[python_version()] = {name: round(result[name], 3) for name in RATIOS}
    RECORD.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true", help="write the ratios down")
    parser.add_argument("--loop", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.loop:
        loop(wanted.loop[0], int(wanted.loop[1]))
        return
    if not is_possible():
        raise SystemExit("instructions: valgrind is missing: apt-get install valgrind")
    result = run()
    if wanted.record:
        record(result)
    if wanted.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name:<28}{value:>10.2f}")


if __name__ == "__main__":
    main()
