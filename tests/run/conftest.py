"""What these tests share: a command under `ws-guard run`, a FlashInfer stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The helpers beside this file, and the exporter's worker with a real slot.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "exporter"))

from run_process import ROOT, RUN, Ended, Run, clean_environment
from stand_in import make_package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    """`start(*command, options=(), **environment)`: the command under `ws-guard run`."""
    started: list[Run] = []

    def start_one(*command: str, options: tuple[str, ...] = (), **environ: str) -> Run:
        process = subprocess.Popen(
            [*RUN, *options, "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(**environ),
            cwd=ROOT,
        )
        started.append(Run(process))
        return started[-1]

    yield start_one
    for run in started:
        run.process.kill()
        run.process.communicate()
        if Path(run.board).name.startswith("ws_guard-run-"):
            shutil.rmtree(run.board, ignore_errors=True)


@pytest.fixture
def run(start: Callable[..., Run]) -> Callable[..., Ended]:
    """As `start`, to the end."""
    return lambda *command, **options: start(*command, **options).end()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """`script(source)`: the path of a Python script."""

    def write(source: str, name: str = "script.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return str(path)

    return write


@pytest.fixture
def packages(tmp_path: Path) -> str:
    """A PYTHONPATH with the FlashInfer stand-in and this tree's ws_guard."""
    directory = tmp_path / "packages"
    directory.mkdir()
    make_package(directory)
    return os.pathsep.join((str(directory), str(ROOT)))
