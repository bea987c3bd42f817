"""What these tests share: boards on file systems of every kind, workers and exporters on them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

# The helpers beside this file also run as scripts.
sys.path.insert(0, str(Path(__file__).parent))

from served import Exporter
from wary import Worker

from ws_guard.board import Board

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def unavailable() -> Callable[[str], NoReturn]:
    """Skips with the reason; fails where the real thing has to be there."""

    def say(reason: str) -> NoReturn:
        if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
            pytest.fail(f"WS_GUARD_REQUIRE_REAL=1, but {reason}", pytrace=False)
        pytest.skip(reason)

    return say


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """A private board that nobody has made yet."""
    return Board(str(tmp_path / "board"))


@pytest.fixture
def root(unavailable: Callable[[str], NoReturn]) -> None:
    if os.geteuid() != 0:
        unavailable("this is not root")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that other users can reach, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="ws_guard-test-") as path:
        os.chmod(path, 0o755)  # noqa: S103 - that is what it is for
        yield Path(path)


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(board: Path, *arguments: str, **environ: str) -> Worker:
        started.append(Worker(board, *arguments, **environ))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def exporter() -> Iterator[Callable[..., Exporter]]:
    started: list[Exporter] = []

    def start(board: Path, **environ: str) -> Exporter:
        started.append(Exporter(board, **environ))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def mount(
    tmp_path: Path,
    root: None,  # noqa: ARG001 - it mounts
    unavailable: Callable[[str], NoReturn],
) -> Iterator[Callable[..., Path]]:
    """`mount(*arguments)`: a new mount point of `mount ARGUMENTS POINT`."""
    points: list[Path] = []

    def make(*arguments: str) -> Path:
        point = tmp_path / f"mount{len(points)}"
        point.mkdir()
        done = subprocess.run(
            ["mount", *arguments, str(point)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            unavailable(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
        points.append(point)
        return point

    yield make
    for point in reversed(points):
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@pytest.fixture
def silent(
    tmp_path: Path,
    root: None,  # noqa: ARG001 - it mounts
    unavailable: Callable[[str], NoReturn],
) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """An empty directory on a file system whose server can be stopped, and that server."""
    if not os.path.exists("/dev/fuse"):
        unavailable("there is no /dev/fuse")
    point = tmp_path / "silent"
    point.mkdir()
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("silent_fs.py")), str(point)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        if server.stdout.readline() != "mounted\n":
            unavailable(f"a file system of our own: {server.communicate()[1].strip()}")
        yield point, server
    finally:
        # Whoever waits for it gets an error.
        server.kill()
        server.communicate()
        subprocess.run(["umount", "--lazy", str(point)], check=False)
