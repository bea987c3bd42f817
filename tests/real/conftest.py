"""What the tests of this directory share: a compiled launcher, CPU tensors, other releases."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from ws_guard import launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exporter_process import Exporter

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

    The environments stand at `.venv-flashinfer-<release>` in the repository root; "installed" is
    that of this process. Returns stdout; a failed run fails the test with its stderr.
    """

    def run(release: str, *arguments: str) -> str:
        python = ROOT / f".venv-flashinfer-{release}" / "bin" / "python"
        if release == "installed":
            python = Path(sys.executable)
        elif not python.exists():
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


@pytest.fixture
def board(tmp_path: Path) -> str:
    return str(tmp_path / "board")


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    """The exporter over the test's board, as a process."""
    from exporter_process import Exporter

    started = Exporter(tmp_path / "board")
    yield started
    if started.process.poll() is None:
        started.stop()


@pytest.fixture(scope="module", params=["installed", "0.6.15.post1", "0.7.4"])
def release(request: pytest.FixtureRequest) -> str:
    """A release of FlashInfer: that of this process, and those of the environments beside it."""
    return str(request.param)


@pytest.fixture(scope="session")
def report_of(
    native_library: Path,
    run_under: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., dict[str, Any]]:
    """`report_of(release, name)`: what a script beside this file reports under a release.

    Under the installed release it runs in this process, unless `alone`.
    """
    assert native_library.exists()
    from plain import plain

    def report(release: str, name: str, *, alone: bool = False) -> dict[str, Any]:
        path = str(tmp_path_factory.mktemp(name) / "board")
        if release == "installed" and not alone:
            out = json.dumps(plain(importlib.import_module(name).report(path)))
        else:
            out = run_under(release, str(HERE / f"{name}.py"), path)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert release in ("installed", found["release"])
        return found

    return report
