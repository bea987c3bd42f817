"""A worker that compares each native call with the same one without the probe, as a process."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

from served import ENVIRON, PATIENCE

SCRIPT = Path(__file__).with_name("wary_worker.py")
CALLS = 1_000
#: Of a round of calls: those, one of a new shape, one that is refused.
ROUND = CALLS + 2


class Worker:
    """A worker under the probe; what it logs is read at its end."""

    def __init__(self, board: Path, *arguments: str, **environ: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(board), *arguments],
            env=ENVIRON | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        assert self._answer() == "attached"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        assert ready, "the worker hangs"
        return self._process.stdout.readline().strip()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def call(self) -> None:
        """A round of calls; each came back as it would without the probe."""
        assert self._ask(f"call {CALLS}") == f"{ROUND} right"

    def describe(self, length: int) -> None:
        assert self._ask(f"describe {length}") == "described"

    def end(self) -> list[str]:
        """The lines that it logged, once it has ended in good order."""
        _, logged = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0, logged
        return logged.splitlines()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
