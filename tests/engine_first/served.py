"""`ws-guard serve` as a process of its own, asked over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: No settings but those of a test: another user cannot load what the unknown ones ask for.
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("WS_GUARD_")}
ENVIRON["PYTHONPATH"] = os.pathsep.join(sys.path)
PATIENCE = 60.0


class Exporter:
    """`ws-guard serve` over a board."""

    def __init__(self, board: Path, **environ: str) -> None:
        command = [sys.executable, "-m", "ws_guard", "serve", "--board", str(board)]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"],
            env=ENVIRON | environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self._url = self.process.stderr.readline().split(" on ")[1].split(",")[0]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self._url + path, timeout=PATIENCE) as answer:  # noqa: S310 - our own
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait_until(self, code: int, told: str = "") -> None:
        """Until /readyz answers so, and /health says so."""
        end = time.monotonic() + PATIENCE
        while True:
            ready, verbose = self.get("/readyz?verbose")
            health, checks = self.get("/health")
            if ready == health == code and told in verbose:
                assert json.loads(checks)["ready"] == (code == 200)
                assert self.get("/livez")[0] == 200
                return
            assert time.monotonic() < end, verbose
            time.sleep(0.05)

    def wait_for_calls(self, calls: int) -> None:
        """Until so many are told, and never more."""
        end = time.monotonic() + PATIENCE
        while (told := self._calls()) != calls:
            assert told < calls
            assert time.monotonic() < end, told
            time.sleep(0.05)

    def _calls(self) -> int:
        lines = self.get("/metrics")[1].splitlines()
        name = "ws_guard_native_calls_total{"
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
