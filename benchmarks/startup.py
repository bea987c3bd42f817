"""What a start costs: `python -m benchmarks.startup [--json]`.

Whole processes, started in turn, round after round; the fastest of each counts, less that of an
interpreter that does nothing. Bytecode is compiled beforehand, as it is where a package was
installed. The status page of a running exporter is measured by `benchmarks.exporter`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

ROUNDS = 20
_INSTALL = "import ws_guard.probe as p; p.install(board={board!r})"
_PLAN = (
    "-m", "ws_guard", "plan", "--heads", "64", "--tp", "8", "--dcp", "8",
    "--flashinfer", "0.6.14", "--max-num-batched-tokens", "16384", "--json",
)  # fmt: skip


def milliseconds(argv: tuple[str, ...], environment: dict[str, str]) -> float:
    """From starting a Python process to its end."""
    start = time.perf_counter()
    subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, *argv],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return 1000 * (time.perf_counter() - start)


def run() -> dict[str, float]:
    """Milliseconds of each beyond the interpreter; `plan_ms` is the whole command."""
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
            milliseconds(argv, environment)
        best = dict.fromkeys(starts, float("inf"))
        for _ in range(ROUNDS):
            for name, argv in starts.items():
                best[name] = min(best[name], milliseconds(argv, environment))
    nothing = best["interpreter"]
    return {
        "interpreter_ms": nothing,
        "typing_beyond_ms": best["typing"] - nothing,
        "import_probe_beyond_ms": best["import_probe"] - nothing,
        "import_and_install_beyond_ms": best["import_and_install"] - nothing,
        "plan_ms": best["plan"],
    }


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
