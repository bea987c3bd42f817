"""The exporter under schemathesis, then under raw abuse: `python tests/exporter/fuzz_http.py`.

It serves a board of busy workers from a process of its own. `--schemathesis` names the program, of
an environment of its own (`make nightly` makes it).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from doors import exporter_process  # noqa: E402
from http_abuse import abuse  # noqa: E402
from slot_worker import FIXED_PLAN, SlotWorker  # noqa: E402

from ws_guard.board import Board  # noqa: E402


def run_schemathesis(program: str, url: str, examples: int, seed: int) -> int:
    """Every check of it over every operation; how many requests it made. Its failure is ours."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "requests.ndjson")
        command = [
            os.path.abspath(program),
            "run",
            f"{url}/openapi.json",
            "--seed",
            str(seed),
            "--no-color",
        ]
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(examples)]
        command += ["--checks", "all", "--continue-on-failure", "--warnings", "off"]
        command += ["--report-ndjson-path", str(report)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        print("\n".join(done.stdout.splitlines()[-25:]))
        if done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
            sys.exit(f"schemathesis found something: seed {seed}")
        made = re.findall(r'"request"\s*:\s*\{', report.read_text())
    return len(made)


def main() -> None:
    """Fuzz, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemathesis", default=".venv-fuzz/bin/schemathesis")
    parser.add_argument("--examples", type=int, default=2_500, help="for each operation")
    parser.add_argument("--requests", type=int, default=20_000, help="of raw abuse")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        board = Board(os.path.join(home, "board"))
        workers = [SlotWorker(board, rank=str(rank), planned=[FIXED_PLAN]) for rank in range(4)]
        for worker in workers:
            worker.call(3_000)
        with exporter_process({"WS_GUARD_BOARD": board.path}) as (process, url):
            begun = time.monotonic()
            made = run_schemathesis(told.schemathesis, url, told.examples, told.seed)
            print(f"schemathesis: {made:,} requests, {time.monotonic() - begun:.0f} s")
            begun = time.monotonic()
            tally = abuse(url, told.requests, told.seed)
            spent = time.monotonic() - begun
            print(f"raw abuse: {told.requests:,} requests, seed {told.seed}, {spent:.0f} s")
            print(json.dumps({status or "no answer": tally[status] for status in sorted(tally)}))
            process.terminate()
            _, said = process.communicate(timeout=30)
        if process.returncode or said:
            sys.exit(f"the exporter ended with {process.returncode} and said: {said}")
        for worker in workers:
            worker.close()


if __name__ == "__main__":
    main()
