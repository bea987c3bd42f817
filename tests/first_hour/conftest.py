"""What these tests share: a newcomer's directory, and a shell in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The table beside this file, and the FlashInfer that needs neither torch nor a GPU.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "run"))

from stand_in import make_package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Typed: TypeAlias = Callable[[str], subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A newcomer's directory: models, packages that lack something, a program, both commands."""
    place = tmp_path_factory.mktemp("first-hour")
    for name, text in {
        "glm/config.json": json.dumps({"num_attention_heads": 64}),
        "broken/config.json": "{",
        "other/config.json": "{}",
        "empty/.keep": "",
        "engine/vllm-0.26.0.dist-info/METADATA": "Name: vllm\nVersion: 0.26.0\n",
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
