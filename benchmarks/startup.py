"""What a start costs: `python -m benchmarks.startup [--json]`.

Whole processes, started in turn, round after round; the fastest of each counts, less that of an
interpreter that does nothing. Bytecode is compiled beforehand, as it is where a package was
installed. The status page of a running exporter is measured by `benchmarks.exporter`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROUNDS = 20
_INSTALL = "import ws_guard.probe as p; p.install(board={board!r})"
_PLAN = (
    "-m", "ws_guard", "plan", "--heads", "64", "--tp", "8", "--dcp", "8",
    "--flashinfer", "0.6.14", "--max-num-batched-tokens", "16384", "--json",
)  # fmt: skip


class Spent(NamedTuple):
    """Milliseconds of a process: from its start to its end, and on the processor."""

    wall: float
    cpu: float


def spend(argv: tuple[str, ...], environment: dict[str, str]) -> Spent:
    """Run a Python process."""
    start, before = time.perf_counter(), _cpu_of_children()
    subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, *argv],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    wall = time.perf_counter() - start
    return Spent(1000 * wall, 1000 * (_cpu_of_children() - before))


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run() -> dict[str, float]:
    """Milliseconds of each beyond the interpreter's, of `plan` of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        starts: dict[str, tuple[str, ...]] = {
            "interpreter": ("-c", "pass"),
            "typing": ("-c", "import typing"),
            "import_probe": ("-c", "import ws_guard.probe"),
            "import_and_install": ("-c", _INSTALL.format(board=f"{folder}/board")),
            "plan": _PLAN,
        }
        for argv in starts.values():
            spend(argv, environment)
        best = dict.fromkeys(starts, Spent(float("inf"), float("inf")))
        for _ in range(ROUNDS):
            for name, argv in starts.items():
                best[name] = Spent(*map(min, best[name], spend(argv, environment)))
    result = {}
    for name, spent in best.items():
        nothing = best["interpreter"] if name not in ("interpreter", "plan") else Spent(0.0, 0.0)
        result[f"{name}_ms"] = spent.wall - nothing.wall
        result[f"{name}_cpu_ms"] = spent.cpu - nothing.cpu
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
        print(f"{name:<30}{value:>8.1f}")


if __name__ == "__main__":
    main()
