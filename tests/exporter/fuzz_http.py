"""The exporter under schemathesis, then under raw abuse: `python tests/exporter/fuzz_http.py`.

schemathesis ends early, since our parameters are few: it goes round the stages below with another
seed each time until it has made all its requests. `--schemathesis` names the program, of an
environment of its own (`make nightly` makes it).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from doors import PASSWORD, exporter_process, hashed
from http_abuse import abuse
from slot_worker import FIXED_PLAN, SlotWorker

from ws_guard.board import Board

USER = f"scraper:{PASSWORD}"
#: 503 is what a board that is not ready is answered with; where, the document says.
_CONFIG = """[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""
_OPEN, _CLOSED = "busy", "busy, a user is asked for"


class Stage(NamedTuple):
    """A board, whom the exporter asks for a password, and whether schemathesis has it.

    `spoil` is done to the board once the exporter is there, which refuses to start over some.
    """

    board: Callable[[Board], list[SlotWorker]]
    asks: str = ""
    knows: bool = False
    spoil: Callable[[Board], object] = lambda _: None


def _busy(board: Board) -> list[SlotWorker]:
    workers = [SlotWorker(board, rank=str(rank), planned=[FIXED_PLAN]) for rank in range(4)]
    for worker in workers:
        worker.call(3_000)
    return workers


def _dead(board: Board) -> list[SlotWorker]:
    workers = _busy(board)
    workers[0].overflow()
    for worker in workers:
        worker.die()
    return []


def _empty(board: Board) -> list[SlotWorker]:
    os.mkdir(board.path, 0o700)
    return []


def _put_a_file_there(board: Board) -> None:
    os.rmdir(board.path)
    Path(board.path).write_text("no directory")


STAGES = {
    _OPEN: Stage(_busy),
    _CLOSED: Stage(_busy, "all but probes", knows=True),
    "busy, probes ask as well": Stage(_busy, "all", knows=True),
    "busy, the password is not known": Stage(_busy, "all but probes"),
    "dead workers": Stage(_dead),
    "absent": Stage(_empty, spoil=lambda board: os.rmdir(board.path)),
    "unreadable": Stage(_empty, spoil=_put_a_file_there),
}


class Tally(NamedTuple):
    """Requests that were made, and those among them that had not been made before."""

    made: int
    new: int


@contextmanager
def serving(stage: Stage, home: str) -> Iterator[str]:
    """An exporter on the stage as a process; it must end well and have said nothing."""
    board = Board(os.path.join(home, "board"))
    workers = stage.board(board)
    environ = {"WS_GUARD_BOARD": board.path}
    if stage.asks:
        Path(home, "users").write_bytes(b"scraper:" + hashed() + b"\n")
        environ["WS_GUARD_BASIC_AUTH_FILE"] = os.path.join(home, "users")
        environ["WS_GUARD_BASIC_AUTH_PROBES"] = "1" if stage.asks == "all" else "0"
    with exporter_process(environ) as (process, url):
        stage.spoil(board)
        yield url
        process.terminate()
        _, said = process.communicate(timeout=30)
    for worker in workers:
        worker.close()
    # Of deaths and overflows it tells, and of a bad board; of requests it has nothing to say.
    lines = [
        line
        for line in said.splitlines()
        if not line.startswith(('{"event": ', f"ws-guard: there is no board {board.path} yet"))
    ]
    if process.returncode or lines:
        sys.exit(f"the exporter ended with {process.returncode} and said: {lines}")


def run_schemathesis(
    program: str, url: str, stage: Stage, examples: int, seed: int
) -> Iterator[str]:
    """Every check of it over every operation; the requests it made. Its failure is ours."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "openapi.json").write_bytes(_openapi(url))
        Path(folder, "schemathesis.toml").write_text(_CONFIG)
        report = Path(folder, "requests.ndjson")
        command = [os.path.abspath(program), "run", "openapi.json", "--url", url]
        command += ["--seed", str(seed), "--max-examples", str(examples), "--no-color"]
        command += ["--phases", "examples,coverage,fuzzing", "--generation-database", "none"]
        command += ["--checks", "all", "--continue-on-failure", "--warnings", "off"]
        command += ["--output-sanitize", "false", "--report-ndjson-path", str(report)]
        if stage.knows:
            # Headers that it makes up would be replaced, and then be taken for wrong ones.
            command += ["--auth", USER, "--generation-with-security-parameters", "false"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
            sys.exit(f"schemathesis found something: seed {seed}")
        with report.open() as lines:
            for line in lines:
                yield from _requests(json.loads(line))


def _openapi(url: str) -> bytes:
    """The exporter's document, whether it asks for a user or not."""
    token = b64encode(USER.encode()).decode()
    request = urllib.request.Request(  # noqa: S310 - our own exporter
        f"{url}/openapi.json", headers={"Authorization": f"Basic {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - the same
        document: bytes = answer.read()
    return document


def _requests(told: Any) -> Iterator[str]:
    """Every request in an event of the report, but for what tells two equal ones apart."""
    if isinstance(told, list):
        for each in told:
            yield from _requests(each)
    elif isinstance(told, dict):
        request = told.get("request")
        if isinstance(request, dict) and "method" in request:
            yield json.dumps([request["method"], _path(request), _headers(request)])
        for each in told.values():
            yield from _requests(each)


def _path(request: dict[str, Any]) -> str:
    return str(request.get("uri") or request.get("url")).split("/", 3)[-1]


def _headers(request: dict[str, Any]) -> list[str]:
    return sorted(
        f"{name}: {value}"
        for name, value in request.get("headers", {}).items()
        if name.lower() not in ("host", "x-schemathesis-testcaseid")
    )


def fuzz_by_document(program: str, requests: int, examples: int, seed: int) -> dict[str, Tally]:
    """Go round the stages until so many requests were made; what was made on each."""
    told = dict.fromkeys(STAGES, Tally(0, 0))
    met: dict[str, set[str]] = {name: set() for name in STAGES}
    for turn in count():
        name = list(STAGES)[turn % len(STAGES)]
        with tempfile.TemporaryDirectory() as home, serving(STAGES[name], home) as url:
            made = list(run_schemathesis(program, url, STAGES[name], examples, seed + turn))
        met[name].update(made)
        told[name] = Tally(told[name].made + len(made), len(met[name]))
        print(f"  {name}: {len(made):,} requests, seed {seed + turn}", flush=True)
        if turn + 1 >= len(STAGES) and sum(each.made for each in told.values()) >= requests:
            return told
    raise AssertionError


def main() -> None:
    """Fuzz, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemathesis", default=".venv-fuzz/bin/schemathesis")
    parser.add_argument("--examples", type=int, default=1_000, help="for each operation and turn")
    parser.add_argument("--requests", type=int, default=20_000, help="of each of both, at least")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    told = parser.parse_args()
    begun = time.monotonic()
    tallies = fuzz_by_document(told.schemathesis, told.requests, told.examples, told.seed)
    for name, tally in tallies.items():
        print(f"{name:<34}{tally.made:>8,} requests{tally.new:>8,} different")
    made = sum(tally.made for tally in tallies.values())
    print(f"schemathesis: {made:,} requests, {time.monotonic() - begun:.0f} s")
    for name in (_OPEN, _CLOSED):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as home, serving(STAGES[name], home) as url:
            statuses = abuse(url, _openapi(url), told.requests // 2, told.seed)
        spent = time.monotonic() - begun
        print(
            f"raw abuse, {name}: {told.requests // 2:,} requests, seed {told.seed}, {spent:.0f} s"
        )
        print(json.dumps({status or "no answer": statuses[status] for status in sorted(statuses)}))


if __name__ == "__main__":
    main()
