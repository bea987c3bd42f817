"""The cheap look at a slot; what the exporter does with it: `tests/exporter/test_calm_board.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ws_guard.board import Board

REUSE = Path(__file__).with_name("pid_reuse.py")


@pytest.mark.usefixtures("chosen_pids")
def test_a_pid_that_comes_round_while_the_exporter_is_stopped_keeps_nobody_alive(
    board: Board,
) -> None:
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*namespace, sys.executable, str(REUSE), board.path]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "alive dead\n", done.stderr
