"""A command under `ws-guard run`, as these tests start it, and the board behind it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from ws_guard.board import Board, SlotReader, SlotView, list_slots

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "ws_guard", "run"]

_ANNOUNCEMENT = re.compile(r"ws-guard exporter on (\S+), board (\S+)\n")
_KEPT = re.compile(r"ws-guard: board kept.*--board (\S+)$", re.MULTILINE)


class Ended(NamedTuple):
    """A run that has ended. `stderr` is without the line that tells where the exporter is."""

    code: int
    stdout: str
    stderr: str
    url: str
    board: str

    @property
    def kept_board(self) -> str | None:
        found = _KEPT.search(self.stderr)
        return found[1] if found else None


class Run:
    """A command under `ws-guard run`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        found = _ANNOUNCEMENT.fullmatch(line := process.stderr.readline())
        assert found is not None, line + process.stderr.read()
        self.url, self.board = found.groups()

    def line(self) -> str:
        """The next line that the command prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def end(self, stdin: str | None = None) -> Ended:
        """Wait for the end."""
        stdout, stderr = self.process.communicate(stdin, timeout=120)
        return Ended(self.process.returncode, stdout, stderr, self.url, self.board)


def clean_environment(**changes: str) -> dict[str, str]:
    """No settings but these, the exporter at a port of its own, this tree's ws_guard."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("WS_GUARD_")}
    own = {"WS_GUARD_LISTEN": "127.0.0.1:0", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return inherited | own | changes


def slots(board: str) -> list[SlotView]:
    """Every slot of a board, in the order in which the workers attached."""
    fd = os.open(board, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = []
        for name in list_slots(fd)[0]:
            with contextlib.suppress(FileNotFoundError):
                found.append(SlotReader(name).read(Board(board), fd))
    finally:
        os.close(fd)
    return sorted(found, key=lambda slot: slot.attached_ns)
