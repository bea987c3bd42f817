"""How whoever reads a line of ours starts us again."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def invocation(*arguments: str) -> str:
    """A `ws-guard` command that works as it is written.

    By its name where a shell would find one; else by the path of the one beside this Python.
    """
    return shlex.join([*_program(), *arguments])


def _program() -> list[str]:
    if shutil.which("ws-guard"):
        return ["ws-guard"]
    beside = Path(sys.executable).with_name("ws-guard")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "ws_guard"]
