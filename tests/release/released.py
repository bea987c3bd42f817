"""What these tests look at: the files of a release, and Python environments elsewhere."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-release"


class Dist(NamedTuple):
    """The three files of a release."""

    sources: Path
    pure: Path
    compiled: Path


class Elsewhere(NamedTuple):
    """A Python environment away from the sources, with nothing of this process' settings."""

    home: Path
    offline: list[str]

    def run(self, *command: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; there is no other, so that there is no compiler."""
        programs = self.home / "bin"
        return subprocess.run(
            [*self.offline, programs / command[0], *command[1:]],
            cwd=self.home,
            env={"PATH": str(programs), "HOME": str(self.home), "LC_ALL": "C.UTF-8", **settings},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def answer(self, program: str) -> str:
        """What a line of Python prints."""
        done = self.run("python", "-W", "error", "-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def install(self, *what: str | Path) -> None:
        """By pip, from files alone."""
        files = ("--no-index", "--find-links", TOOLS / "wheels", *what)
        done = self.run("python", "-m", "pip", "--isolated", "install", *files)
        assert done.returncode == 0, done.stdout + done.stderr
