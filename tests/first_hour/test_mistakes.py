"""What goes wrong in a newcomer's first hour: each mistake ends in its code and one line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from mistakes import INSTALL_THERE, MISTAKES, STEP, Mistake

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Typed: TypeAlias = Callable[[str], subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
CASES = [
    pytest.param(mistake, id=f"{what}: {mistake.command}")
    for what, mistakes in MISTAKES.items()
    for mistake in mistakes
]


@pytest.mark.parametrize("mistake", CASES)
def test_a_mistake_ends_in_one_line(mistake: Mistake, typed: Typed) -> None:
    done = typed(mistake.command)
    # `run` says where its exporter is, as the port was left to the system
    said = [line for line in done.stderr.splitlines() if " exporter on " not in line]
    assert (done.returncode, len(said)) == (mistake.code, 1), done.stderr
    assert mistake.says in said[0]
    # These two have something to say before they know
    if mistake.code == 2 and not any(word in mistake.command for word in ("status", "demo")):
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("board", "says", "check", "metrics"),
    [
        (
            "$OTHERS",
            "set WS_GUARD_BOARD_GROUP to share it, or WS_GUARD_BOARD to another directory",
            "[-]board_readable failed: the board cannot be read: the board belongs to uid",
            503,
        ),
        (
            "typo",
            "there is no board typo yet: the first worker makes it; --board or WS_GUARD_BOARD",
            "[-]workers_reporting failed: no worker reports yet",
            200,
        ),
    ],
)
def test_serve_says_what_is_wrong_with_its_board_and_serves(
    board: str, says: str, check: str, metrics: int, place: Path, environment: dict[str, str]
) -> None:
    process = subprocess.Popen(
        ["sh", "-c", f"exec ws-guard serve --board {board}"],
        cwd=place, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split(" on ")[1].split(",")[0]
        assert says in process.stderr.readline()
        assert httpx.get(f"{url}/livez").status_code == 200
        assert check in httpx.get(f"{url}/readyz?verbose").text
        assert httpx.get(f"{url}/metrics").status_code == metrics
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stderr.close()


def test_status_names_the_board_that_is_not_there(typed: Typed) -> None:
    done = typed("ws-guard status --board typo")
    assert done.returncode == 1
    assert "board typo; it is not there, --board or WS_GUARD_BOARD names another" in done.stdout


def test_a_worker_tells_a_misspelt_setting_in_health(typed: Typed) -> None:
    health = "from ws_guard.settings import require_settings as s; "
    health += "from ws_guard.exporter import status; status.show(s(), as_json=True)"
    done = typed(
        "export WS_GUARD_BOARD=$PWD/told WS_GUARD_SZIING=off "
        f"PYTHONPATH=stand-in:$PYTHONPATH; python -c '{INSTALL_THERE}; {health}'"
    )
    (worker,) = json.loads(done.stdout)["workers"]
    assert worker["problems"] == ["WS_GUARD_SZIING is no setting: did you mean WS_GUARD_SIZING?"]


def test_a_quoted_tilde_is_the_home(place: Path, typed: Typed) -> None:
    """In quotes, a unit or a manifest no shell has seen it."""
    typed(f"HOME=$PWD ws-guard plan {STEP} --sweep tokens=1,2 --plot '~/sweep.png'")
    assert (place / "sweep.png").read_bytes().startswith(b"\x89PNG")
    for command, said in {
        "ws-guard status --board '~/typo'": f"board {place}/typo;",
        "WS_GUARD_BOARD='~/typo' ws-guard status": f"board {place}/typo;",
        "ws-guard explain '~/engine.log'": f"{place}/engine.log cannot be read",
        "WS_GUARD_BASIC_AUTH_FILE='~/x' ws-guard serve": f"{place}/x: No such file",
        "ws-guard demo --python '~/missing'": f"--python {place}/missing: No such file",
    }.items():
        done = typed(f"export HOME=$PWD; {command}")
        assert said in done.stdout + done.stderr


@pytest.mark.parametrize(
    "board", ["made/here", "made"], ids=["its parents are made as well", "it is empty"]
)
def test_a_board_that_can_be_made_is_left_to_the_workers(board: str, typed: Typed) -> None:
    done = typed(f"ws-guard run --board {board} -- sh -c 'test ! -e made'")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("short", "long"),
    [("-h", "--help"), ("help", "--help"), ("plan -h", "plan --help"), ("help run", "run --help")],
)
def test_help_by_any_name(short: str, long: str, typed: Typed) -> None:
    asked = typed(f"ws-guard {short}")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout == typed(f"ws-guard {long}").stdout


def test_both_names_are_one_command(typed: Typed) -> None:
    assert typed("ws-guard --version").stdout == typed("python -m ws_guard --version").stdout


@pytest.mark.parametrize("command", ["plan", "verify", "serve", "run", "status", "explain", "demo"])
def test_help_has_exit_codes_and_a_line_that_can_be_typed(command: str, typed: Typed) -> None:
    told = typed(f"ws-guard {command} --help").stdout.splitlines()
    assert any(line.strip().startswith("Exit codes: ") for line in told)
    examples = [line.strip() for line in told if line.startswith(f"  ws-guard {command}")]
    assert examples
    known = " ".join(told)
    for example in examples:
        # What stands behind -- is the engine's
        own = shlex.split(example.partition(" -- ")[0])
        assert [word for word in own if word.startswith("--") and word not in known] == []


def test_what_is_offered_is_listed() -> None:
    listed = "import ws_guard; print(set(ws_guard.__all__) <= set(dir(ws_guard)))"
    listed += "; import sys; print('ws_guard.planning' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listed], capture_output=True, text=True, check=True, cwd=ROOT
    )
    # And nothing is loaded for that
    assert done.stdout == "True\nFalse\n"
