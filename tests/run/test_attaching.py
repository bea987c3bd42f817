"""Which processes become workers, and with which labels."""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from run_process import Ended, Run
from scripts import CALL, SLOT, TELL

if TYPE_CHECKING:
    from collections.abc import Callable


def test_importing_flashinfer_opens_no_slot(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    """API servers and engine cores import it too."""
    program = script("""
    import os
    import flashinfer.jit.core as core
    core.JitSpec("batch_decode").build_and_load()
    print(os.path.exists(os.environ["WS_GUARD_BOARD"]), os.listdir(os.environ["WS_GUARD_BOARD"]))
    """)
    assert run(sys.executable, program, PYTHONPATH=packages).stdout == "True []\n"


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_whoever_installs_the_probe_is_the_only_one(
    when: str, run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    """As an engine's plugin does: before FlashInfer, after its import, after its first call."""
    install = "import ws_guard; ws_guard.install(engine=3, rank=5)\n"
    steps = [CALL, TELL, SLOT]
    steps.insert({"before": 0, "between": 0, "after": 1}[when], install)
    if when == "between":
        steps.insert(0, "import flashinfer.jit.core\n")
    ended = run(sys.executable, script("".join(steps)), PYTHONPATH=packages)
    told = ["3", "5"] if when != "after" else ["0", "0"]
    assert ended.stdout == f"True\n{[*told, 1]}\n"
    # The later one is told that it is.
    assert ("already installed, arguments ignored" in ended.stderr) == (when == "after")


def test_rank_that_a_launcher_tells(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    ended = run(sys.executable, script(CALL + SLOT), PYTHONPATH=packages, LOCAL_RANK="6")
    assert ended.stdout == "['0', '6', 1]\n"


def test_switched_off(run: Callable[..., Ended], script: Callable[..., str], packages: str) -> None:
    program = script(CALL + "import sys; print('ws_guard' in sys.modules)")
    ended = run(sys.executable, program, PYTHONPATH=packages, WS_GUARD_ENABLED="0")
    assert (ended.code, ended.stdout) == (0, "False\n")


def test_exporter_beside_it(
    start: Callable[..., Run], script: Callable[..., str], packages: str
) -> None:
    program = script(f"{CALL}print(os.getpid(), flush=True); input()")
    run = start(sys.executable, program, PYTHONPATH=packages)
    pid = int(run.line())
    told: list[Any] = []
    while not told:  # its reads of the board are half a second apart
        with urllib.request.urlopen(f"{run.url}/api/v1/workers", timeout=30) as answer:  # noqa: S310 - ours
            told = json.load(answer)["workers"]
    assert [(worker["pid"], worker["alive"]) for worker in told] == [(pid, True)]
    assert run.end(stdin="\n").code == 0
