"""Programs in a Python of their own, which none of this process's settings reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(packages: str = "", **settings: str) -> dict[str, str]:
    """Variables of a process that finds ws_guard, and before it what is in `packages`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WS_GUARD_") and name != "LOCAL_RANK"
    }
    path = os.pathsep.join(filter(None, (packages, str(ROOT))))
    return {**inherited, "PYTHONPATH": path, **settings}


def python(
    program: str, *arguments: str, isolated: bool = False, packages: str = "", **settings: str
) -> list[str]:
    """Lines that a program prints, those on stderr last; `isolated` hides installed packages."""
    done = subprocess.run(
        [sys.executable, *(["-S"] if isolated else []), "-c", program, *arguments],
        env=environment(packages, **settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]
