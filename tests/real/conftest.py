"""What the tests of this directory share: a compiled launcher, CPU tensors, other releases."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from ws_guard import launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# The helpers beside this file also run without pytest, as plain modules of one another.
sys.path.insert(0, str(HERE))

_SEED = pytest.StashKey[int]()


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; fail where the real thing has to be there."""
    if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
        pytest.fail(f"WS_GUARD_REQUIRE_REAL=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of the random shapes: another one each run, or WS_GUARD_SEED to repeat one."""
    chosen = os.environ.get("WS_GUARD_SEED")
    value = int(chosen) if chosen else random.SystemRandom().randrange(1 << 32)
    pytestconfig.stash[_SEED] = value
    return value


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if _SEED in config.stash:
        terminalreporter.write_line(
            f"random shapes: repeat with WS_GUARD_SEED={config.stash[_SEED]}"
        )


@pytest.fixture(scope="session")
def native_library() -> Path:
    """The installed FlashInfer's launcher, compiled against the stub runner."""
    pytest.importorskip("torch")
    try:
        return launcher.build(launcher.installed_flashinfer_root())
    except launcher.CompilerMissing as error:
        unavailable(str(error))


@pytest.fixture
def on_cpu(native_library: Path) -> Iterator[launcher.Recorder]:
    """FlashInfer's public functions run on CPU tensors during the test."""
    with launcher.on_cpu(native_library) as recorder:
        yield recorder


@pytest.fixture(scope="session")
def run_under() -> Callable[..., str]:
    """`run_under(release, *arguments)`: python of an environment with that FlashInfer release.

    The environments stand at `.venv-flashinfer-<release>` in the repository root. Returns stdout;
    a failed run fails the test with its stderr.
    """

    def run(release: str, *arguments: str) -> str:
        python = ROOT / f".venv-flashinfer-{release}" / "bin" / "python"
        if not python.exists():
            unavailable(f"there is no {python.relative_to(ROOT)}")
        done = subprocess.run(
            [str(python), *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE)))},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        if "CompilerMissing" in done.stderr:
            unavailable(done.stderr.splitlines()[-1])
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
