"""Workers and exporters of different releases: what is not understood is refused, and said.

The other release is a copy of this one whose slots have another format version and another order of
bytes, run as processes of its own: older or newer than ours, it is the same to both sides.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from doors import exporter_process

import ws_guard
from ws_guard.board.format import VERSION, Header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Attach, Get

    from ws_guard.board import Board


REMEDY = "; give exporter and workers the same ws-guard, and remove what is left"
OURS = Path(ws_guard.__file__).parents[1]
AGES = {VERSION - 1: "an older", VERSION + 1: "a newer"}


@pytest.fixture(params=list(AGES), ids=list(AGES.values()))
def other_version(request: pytest.FixtureRequest) -> int:
    """The format version of the other release."""
    version: int = request.param
    return version


@pytest.fixture
def other(tmp_path: Path, other_version: int) -> Path:
    """Where another release lies."""
    home = tmp_path / "other"
    shutil.copytree(
        OURS / "ws_guard", home / "ws_guard", ignore=shutil.ignore_patterns("__pycache__")
    )
    changed = home / "ws_guard" / "board" / "format.py"
    text = changed.read_text()
    for ours, theirs in (
        (f"\nVERSION = {VERSION}\n", f"\nVERSION = {other_version}\n"),
        ("\nDOCUMENT_BYTES = 16_384\n", "\nDOCUMENT_BYTES = 8_192\n"),
    ):
        assert text.count(ours) == 1
        text = text.replace(ours, theirs)
    changed.write_text(text)
    return home


def command(release: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Python with a release in front of all else."""
    environ = os.environ | {"PYTHONPATH": str(release)}
    return subprocess.run(
        [sys.executable, *argv], cwd=release, env=environ, capture_output=True, text=True
    )


@pytest.fixture
def other_worker(board: Board, other: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker of the other release as a process: rank 0, an overflow on its slot."""
    script = "from ws_guard.board import Board; from slot_worker import SlotWorker; import time; "
    script += f"w = SlotWorker(Board({board.path!r})); w.overflow(); "
    script += "print('attached', flush=True); time.sleep(600)"
    path = f"{other}:{Path(__file__).parent}"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=other,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "attached\n"
    yield process
    process.kill()
    process.communicate()


def passed_over(version: int, known: int = VERSION) -> str:
    age = "a newer" if version > known else "an older"
    told = f"1 file on the board passed over: it has format version {version}, known is {known}: "
    return f"{told}its worker has {age} ws-guard{REMEDY}"


def error_count(text: str) -> str:
    (line,) = [
        one for one in text.splitlines() if one.startswith("ws_guard_board_read_errors_total ")
    ]
    return line.partition(" ")[2]


def remove_dead(release: Path, board: Board) -> str:
    """What a worker of a release that starts as rank 0 clears away."""
    script = "from ws_guard.board import Board, remove_dead; "
    script += f"print(remove_dead(Board({board.path!r}), '0', '0', None))"
    return command(release, "-c", script).stdout.strip()


def test_a_worker_of_another_release_is_told_and_counted_and_hides_no_other(
    attach: Attach, get: Get, other_worker: subprocess.Popen[str], other_version: int
) -> None:
    attach(rank="1", planned=[])
    health = get("/health")
    assert (health.status_code, [one["rank"] for one in health.json()["workers"]]) == (200, ["1"])
    told = passed_over(other_version)
    first = {"name": "board_readable", "state": "warn", "detail": told}
    assert health.json()["checks"][0] == first
    assert get("/readyz?verbose").text.startswith(f"[+]board_readable warn: {told}")
    assert error_count(get("/metrics").text) == "1.0"
    assert other_worker.poll() is None


def test_an_exporter_of_another_release_tells_the_same_of_our_workers(
    attach: Attach, board: Board, other: Path, other_version: int
) -> None:
    attach()
    environ = {"PYTHONPATH": str(other), "WS_GUARD_BOARD": board.path}
    with exporter_process(environ, cwd=other) as (_, url):
        check = httpx.get(f"{url}/health").json()["checks"][0]
        assert (check["state"], check["detail"]) == ("warn", passed_over(VERSION, other_version))
        assert httpx.get(f"{url}/readyz").text == "not ready: workers_reporting\n"
        assert error_count(httpx.get(f"{url}/metrics").text) == "1.0"


def test_status_tells_it(
    attach: Attach, board: Board, other_worker: subprocess.Popen[str], other_version: int
) -> None:
    attach(rank="1", planned=[])
    asked = ("-m", "ws_guard", "status", "--board", board.path)
    done = command(OURS, *asked, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["checks"][0]["detail"] == passed_over(other_version)
    shown = " ".join(command(OURS, *asked).stdout.split())
    assert shown.startswith(f"READY board_readable: {passed_over(other_version)}")
    assert other_worker.poll() is None


def test_explain_does_not_say_that_nobody_died_without_saying_whom_it_cannot_see(
    board: Board, other_worker: subprocess.Popen[str], other: Path, other_version: int
) -> None:
    other_worker.kill()
    other_worker.wait()
    asked = ("-m", "ws_guard", "explain", "--board", board.path)
    done = command(OURS, *asked)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        f"ws-guard: no call on board {board.path} that did not fit; no worker died",
        f"ws-guard: {passed_over(other_version)}",
    ]
    told = json.loads(command(OURS, *asked, "--json").stdout)
    assert (told["findings"], told["passed_over"]) == ([], passed_over(other_version))
    # The release that wrote the slot finds the call in it.
    theirs = command(other, *asked, "--json")
    assert theirs.returncode == 0
    assert json.loads(theirs.stdout)["passed_over"] == ""


def test_a_worker_that_starts_leaves_slots_of_another_release_alone(
    attach: Attach, board: Board, other: Path, other_worker: subprocess.Popen[str]
) -> None:
    """Dead ones of its own identity too: it cannot tell whose they are."""
    other_worker.kill()
    other_worker.wait()
    (theirs,) = os.listdir(board.path)
    dead = attach()
    dead.die()
    assert remove_dead(OURS, board) == f"['{dead.name}']"
    assert os.listdir(board.path) == [theirs]
    dead = attach()
    dead.die()
    assert remove_dead(other, board) == f"['{theirs}']"
    assert os.listdir(board.path) == [dead.name]


def test_what_is_no_slot_beside_it_is_told_after_it(attach: Attach, get: Get, board: Board) -> None:
    attach().slot.words[Header.VERSION] = 9
    Path(board.path, "a.slot").write_bytes(b"")
    detail = get("/health").json()["checks"][0]["detail"]
    assert detail.startswith("2 files on the board passed over: it has format version 9, known")
    assert "it has 0 bytes" in detail
