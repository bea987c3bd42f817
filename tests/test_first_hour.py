"""What goes wrong in a newcomer's first hour: each mistake, the code, and the line that is said.

`MISTAKES` is the list. Every command runs as written, in a directory that `place` fills; bad usage
and what cannot be read is 2 and one line on standard error, which names the input and the remedy.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest

ROOT = Path(__file__).parents[1]
# The FlashInfer that needs neither torch nor a GPU.
sys.path.insert(0, str(ROOT / "tests" / "run"))

from stand_in import make_package  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Typed: TypeAlias = Callable[[str], subprocess.CompletedProcess[str]]

STEP = "--heads 64 --max-num-batched-tokens 16384"
VLLM = "--heads 64 --engine-version 0.33.0 -- vllm serve glm"
NO_FLAG = "of the launch command is no flag of vllm: did you mean"
NOT_HERE = "pass --model DIRECTORY (or a config.json), or --heads"
#: A native op that is kept somewhere before ws_guard comes: its calls pass by.
LATE = """
import functools
import flashinfer
from flashinfer.jit import core
native = core.JitSpec("fmha_gen").build_and_load()
native.trtllm_paged_attention_decode = lambda *_: None
flashinfer.get_trtllm_gen_fmha_module = functools.cache(lambda: native)
kept = [flashinfer.get_trtllm_gen_fmha_module().trtllm_paged_attention_decode]
import ws_guard
ws_guard.install(board="board")
"""
INSTALL = 'import ws_guard; ws_guard.install(board="board")'
INSTALL_THERE = "import ws_guard; ws_guard.install()"


class Mistake(NamedTuple):
    """A command as typed, what its one line on standard error holds, and its exit code."""

    command: str
    says: str
    code: int = 2


MISTAKES: dict[str, list[Mistake]] = {
    "a wrong word": [
        Mistake("ws-guard", "Missing command. See ws-guard --help."),
        Mistake("ws-guard plna", "No such command 'plna'"),
        Mistake("ws-guard plan --hedas 64", "No such option: --hedas"),
        Mistake("ws-guard plan --heads 64x", "Invalid value for '--heads'"),
        Mistake("ws-guard status --borad x", "See ws-guard status --help."),
        Mistake("ws-guard run", "Missing argument 'command'. See ws-guard run --help."),
    ],
    "a size that is missing, or none": [
        Mistake("ws-guard plan", "--heads is missing: pass the model's query heads"),
        Mistake("ws-guard plan --heads 64", "--max-num-batched-tokens is missing: pass the tokens"),
        Mistake(f"ws-guard plan {STEP} --tp 0", "--tp must be between 1 and 1,048,576, got 0"),
        Mistake(f"ws-guard plan {STEP} --tp 8 --dcp 3", "--dcp 3 must divide tp x pcp = 8; change"),
        Mistake(
            f"ws-guard plan {STEP} --workspace-bytes 394M",
            "--workspace-bytes: '394M' is not a size; write bytes or e.g. 394MiB",
        ),
    ],
    "a misspelt flag of the launch command": [
        Mistake(
            f"ws-guard plan {VLLM} --max-num-batched-tokenz 16384",
            f"--max-num-batched-tokenz {NO_FLAG} --max-num-batched-tokens?",
        ),
        Mistake(f"ws-guard plan {VLLM} --tp 8", f"--tp {NO_FLAG} --tensor-parallel-size?"),
        Mistake(f"ws-guard plan {VLLM} -tp8", f"-tp8 {NO_FLAG} -tp 8?"),
        Mistake(f"ws-guard plan {VLLM} -tp eight", "-tp of the launch command: 'eight' cannot be"),
        Mistake(
            "ws-guard plan -- vllm serve glm --heads 64",
            f"--heads {NO_FLAG} --heads of ws-guard plan, before the command?",
        ),
        Mistake(
            "ws-guard plan -- VLLM_FLASHINFER_WORKSPACE_BUFER_SIZE=2561671168 vllm serve glm",
            "VLLM_FLASHINFER_WORKSPACE_BUFER_SIZE of the launch command is no variable of vllm: "
            "did you mean VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE?",
        ),
        Mistake("ws-guard plan -- vllm bench", "it needs 'vllm serve', 'sglang serve', or"),
    ],
    "a model that is not here": [
        Mistake("ws-guard plan -- vllm serve zai-org/GLM-5.2", NOT_HERE),
        Mistake("env -u HF_HUB_CACHE HOME=/proc/x ws-guard plan -- vllm serve org/model", NOT_HERE),
        Mistake("ws-guard plan -- vllm serve", "no model: pass --model, --heads"),
        Mistake("ws-guard plan --engine vllm --model empty", "empty holds no config.json: pass"),
        Mistake("ws-guard plan --engine vllm --model broken", "broken/config.json cannot be read"),
        Mistake("ws-guard plan --engine vllm --model other", "num_attention_heads: pass --heads"),
    ],
    "a FlashInfer that is too old, or none": [
        Mistake(f"ws-guard plan {STEP} --flashinfer 0.2.5", "--flashinfer 0.2.5 is older than"),
        Mistake(
            "PYTHONPATH=old:$PYTHONPATH ws-guard verify",
            "flashinfer 0.2.5 ships no trtllm_fmha_kernel_launcher.cu: install flashinfer-python "
            "0.6.8.post1 or newer beside ws-guard",
        ),
        Mistake(
            f"PYTHONPATH=old:$PYTHONPATH python -S -c '{INSTALL}'",
            "flashinfer 0.2.5 ships no trtllm_fmha_kernel_launcher.cu, no call will be seen: "
            "install flashinfer-python 0.6.8.post1 or newer into this environment",
            code=0,
        ),
        Mistake(
            f"python -S -c '{INSTALL}'",
            "flashinfer is not installed, no call will be seen: install flashinfer-python",
            code=0,
        ),
        Mistake("ws-guard demo --python missing", "--python missing: No such file or directory"),
        Mistake("ws-guard demo --layout D", "--layout is A, B or C, got 'D'"),
    ],
    "installed too late": [
        Mistake(
            "PYTHONPATH=stand-in:$PYTHONPATH python late.py",
            "objects that hold native functions already: their calls are not seen; install "
            "ws_guard before the engine's first step",
            code=0,
        ),
    ],
    "an extra that is not installed": [
        Mistake(
            "PYTHONPATH=bare:$PYTHONPATH ws-guard serve",
            "the command line needs pip install 'ws-guard[exporter]'",
        ),
        Mistake(
            f"PYTHONPATH=no-plot:$PYTHONPATH ws-guard plan {STEP} --sweep tokens=1,2 --plot x.png",
            "pip install 'ws-guard[plot]'",
        ),
    ],
    "an address that cannot be had": [
        Mistake("ws-guard serve --listen 19456", "--listen '19456' is not allowed: it is not host"),
        Mistake("WS_GUARD_LISTEN=19456 ws-guard serve", "WS_GUARD_LISTEN='19456' is not allowed"),
        *(
            Mistake(
                f"ws-guard {command.format('--listen $TAKEN')}",
                "Address already in use; set WS_GUARD_LISTEN, or --listen, to a free host:port",
            )
            for command in ("serve {}", "run {} -- true", "demo {}")
        ),
        Mistake("WS_GUARD_TLS_CERT=x WS_GUARD_TLS_KEY=x ws-guard serve", "readable PEM file"),
        Mistake("WS_GUARD_BASIC_AUTH_FILE=x ws-guard serve", "make it with htpasswd -B"),
    ],
    "a board that is not there, or not ours": [
        Mistake("ws-guard explain --board typo", "board typo: there is no such directory; pass"),
        Mistake("ws-guard status --board $OTHERS", "set WS_GUARD_BOARD_GROUP to share it, or"),
        Mistake("ws-guard run --board $OTHERS -- true", "set WS_GUARD_BOARD_GROUP to share it, or"),
        Mistake("ws-guard status --board late.py", "the board is not a directory; set WS_GUARD_BO"),
        Mistake("ws-guard run --board late.py -- true", "late.py is not a directory; set WS_GUARD"),
        Mistake("ws-guard run --board late.py/x -- true", "x: Not a directory; set WS_GUARD_BOARD"),
        Mistake(
            "WS_GUARD_BOARD_GROUP=$(id -g) ws-guard run --board typo -- true",
            "typo: make the shared one first",
        ),
        Mistake("WS_GUARD_BOARD_GROUP=nogroup-x ws-guard status", "there is no such group"),
        Mistake(
            "WS_GUARD_BOARD=$OTHERS PYTHONPATH=stand-in:$PYTHONPATH "
            f"python -S -c '{INSTALL_THERE}'",
            "set WS_GUARD_BOARD_GROUP to share it, or WS_GUARD_BOARD to another directory",
            code=0,
        ),
    ],
    "a setting that is none": [
        Mistake("WS_GUARD_STRICT=maybe ws-guard verify", "WS_GUARD_STRICT='maybe' is not allowed"),
        Mistake(
            "WS_GUARD_ON_OVERFLOW=rasie PYTHONPATH=stand-in:$PYTHONPATH "
            f"python -S -c '{INSTALL}'",
            "WS_GUARD_ON_OVERFLOW has a value that is not allowed: use observe or raise or split; "
            "the default is used",
            code=0,
        ),
        *(
            Mistake(
                f"WS_GUARD_SZIING=off {command}",
                "WS_GUARD_SZIING is no setting: did you mean WS_GUARD_SIZING?",
                code=code,
            )
            for command, code in (
                ("ws-guard run -- true", 0),
                ("ws-guard status --board typo", 1),
                (f"PYTHONPATH=stand-in:$PYTHONPATH python -S -c '{INSTALL}'", 0),
            )
        ),
    ],
    "a program or log that is not there": [
        Mistake("ws-guard run -- vlm serve glm", "vlm: command not found; name a program behind"),
        Mistake("ws-guard run -- ./late.py", "./late.py: Permission denied; name a program"),
        Mistake("ws-guard run --apply -- vllm serve glm", "--apply: vllm is not installed beside"),
        Mistake("ws-guard explain engine.log", "engine.log cannot be read: No such file or direct"),
        Mistake("ws-guard explain empty", "empty is a directory: name a log file, or pass --board"),
        Mistake("ws-guard explain late.py", "no known fault of a workspace in late.py", code=1),
    ],
    "no card": [
        Mistake(
            "CUDA_VISIBLE_DEVICES= python $TESTS/gpu/xqa_painting.py",
            "finds no CUDA device; run it by a Python with both for the card",
        ),
    ],
}  # fmt: skip
CASES = [
    pytest.param(mistake, id=f"{what}: {mistake.command}")
    for what, mistakes in MISTAKES.items()
    for mistake in mistakes
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A newcomer's directory: models, packages that lack something, a program, both commands."""
    place = tmp_path_factory.mktemp("first-hour")
    for name, text in {
        "glm/config.json": json.dumps({"num_attention_heads": 64}),
        "broken/config.json": "{",
        "other/config.json": "{}",
        "empty/.keep": "",
        "late.py": LATE,
        "bare/typer.py": "raise ImportError",
        "no-plot/matplotlib.py": "raise ImportError",
        "old/flashinfer/__init__.py": "",
        "old/flashinfer_python-0.2.5.dist-info/METADATA": "Version: 0.2.5\n",
        "bin/ws-guard": f'#!/bin/sh\nexec {sys.executable} -m ws_guard "$@"\n',
        "bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
        (place / name).chmod(0o755 if name.startswith("bin/") else 0o644)
    make_package(place / "stand-in")
    return place


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A board of another user; who is not root finds one in any directory of the system's."""
    if os.geteuid() != 0:
        return "/usr"
    board = tmp_path_factory.mktemp("others")
    os.chown(board, 4_242, 4_242)
    return str(board)


@pytest.fixture(scope="module")
def taken() -> Iterator[str]:
    """An address that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="module")
def environment(place: Path, others: str, taken: str) -> dict[str, str]:
    """No settings but a port of the exporter's own choice, and what the commands refer to."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("WS_GUARD_")}
    own = {
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_CACHE": str(place / "hub"),
        "WS_GUARD_LISTEN": "127.0.0.1:0",
        "OTHERS": others,
        "TAKEN": taken,
        "TESTS": str(ROOT / "tests"),
    }
    return inherited | own


@pytest.fixture
def typed(place: Path, environment: dict[str, str]) -> Typed:
    """Runs a line as a shell does."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line], cwd=place, env=environment, capture_output=True, text=True,
            check=False, timeout=240,
        )  # fmt: skip

    return run


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
