"""A real exporter over a board, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from pathlib import Path


class Exporter:
    def __init__(self, board: Path) -> None:
        command = [sys.executable, "-m", "ws_guard", "serve"]
        command += ["--board", str(board), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.url = self.process.stderr.readline().split(" on ")[1].split(",")[0]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path) as answer:  # noqa: S310 - loopback
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """Every sample of engine 0, rank 3 by its name."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        samples = [sample for family in families for sample in family.samples]
        return {s.name: s.value for s in samples if s.labels.get("rank") == "3"}

    def stop(self) -> list[dict[str, object]]:
        """End it; the JSON lines that it wrote to stderr."""
        self.process.terminate()
        _, errors = self.process.communicate()
        assert self.process.returncode == 0
        return [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
