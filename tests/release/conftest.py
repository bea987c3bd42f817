"""What these tests share: what `make dist` has made, and Python environments elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# `make dist` runs these tests in the environment that it builds with; the sources are beside it.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from released import ROOT, Dist, Elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def dist() -> Dist:
    """What stands in dist/, and that nothing else does."""
    found = sorted((ROOT / "dist").glob("*"))
    if not found:
        pytest.fail("there is nothing in dist/: make dist", pytrace=False)
    (sources,) = (each for each in found if each.name.endswith(".tar.gz"))
    (pure,) = (each for each in found if each.name.endswith("-py3-none-any.whl"))
    (compiled,) = (each for each in found if "-cp310-abi3-" in each.name)
    assert {sources, pure, compiled} == set(found)
    return Dist(sources, pure, compiled)


@pytest.fixture(scope="session")
def offline() -> list[str]:
    """The beginning of a command without a network, where this user may make such a place."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    apart = [unshare, "--user", "--map-root-user", "--net"]
    # Where this is forbidden, pip's --no-index must do.
    return (
        []
        if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode
        else apart
    )


@pytest.fixture
def elsewhere(tmp_path: Path, offline: list[str]) -> Elsewhere:
    """A fresh environment."""
    home = tmp_path / "else where"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    return Elsewhere(home, offline)


@pytest.fixture
def wheel_of(offline: list[str], tmp_path: Path) -> Callable[..., Path]:
    """`wheel_of(sources, **settings)`: the wheel that an installation makes of the sources."""

    def make(sources: Path, **settings: str) -> Path:
        pip = (
            "-m",
            "pip",
            "--isolated",
            "wheel",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
        )
        subprocess.run(
            [*offline, sys.executable, *pip, "--wheel-dir", tmp_path / "made", sources],
            env=dict(os.environ) | settings,
            capture_output=True,
            check=True,
        )
        (made,) = (tmp_path / "made").iterdir()
        return made

    return make
