"""Boards that are full, gone, read-only or silent: the engine runs on, one line says so, and the
exporter is not ready.

Each is a real one: file systems are mounted, filled and silenced, which takes root.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
#: No settings but those of a test: a worker of another user cannot load what unknown ones ask for.
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("WS_GUARD_")}
ENVIRON["PYTHONPATH"] = os.pathsep.join(sys.path)
PATIENCE = 60.0
CALLS = 1_000
#: Of a round of calls: those, one of a new shape, one that is refused.
ROUND = CALLS + 2
NOBODY = 65_534


class Worker:
    """A worker under the probe; what it logs is read at its end."""

    def __init__(self, board: Path, *arguments: str, **environ: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "wary_worker.py"), str(board), *arguments],
            env=ENVIRON | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        assert self._answer() == "attached"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        assert ready, "the worker hangs"
        return self._process.stdout.readline().strip()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def call(self) -> None:
        """A round of calls; each came back as it would without the probe."""
        assert self._ask(f"call {CALLS}") == f"{ROUND} right"

    def describe(self, length: int) -> None:
        assert self._ask(f"describe {length}") == "described"

    def end(self) -> list[str]:
        """The lines that it logged, once it has ended in good order."""
        _, logged = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0, logged
        return logged.splitlines()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


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
            with urllib.request.urlopen(self._url + path, timeout=PATIENCE) as answer:  # noqa: S310
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
        [sys.executable, str(HERE / "silent_fs.py"), str(point)],
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


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def fill(board: Path) -> None:
    """Take the last byte of a file system."""
    with (board / ".filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def the_only(lines: list[str]) -> str:
    (line,) = lines
    return line


# -- full -------------------------------------------------------------------------------------


def test_a_board_that_is_full(
    mount: Callable[..., Path], worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    board = mount("-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs")
    watched, engine = exporter(board), worker(board)
    engine.call()
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    line = the_only(engine.end())
    assert f"not observed: board {board}: [Errno 28] No space left on device" in line
    assert os.listdir(board) == []
    watched.stop()


def test_a_board_that_fills_later(
    mount: Callable[..., Path], worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    """All of a slot was reserved: nothing is lost, and nobody need be told."""
    board = mount("-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs")
    watched, engine = exporter(board), worker(board)
    watched.wait_until(200)
    fill(board)
    assert os.statvfs(board).f_bfree == 0
    for _ in range(3):
        engine.call()
    engine.describe(15_000)
    watched.wait_for_calls(3 * ROUND)
    # What the worker met, a refused call, is told as ever.
    watched.wait_until(503, "[-]no_overflow failed")
    assert engine.end() == []
    watched.stop()


# -- read-only --------------------------------------------------------------------------------


def test_a_board_that_is_mounted_read_only(
    mount: Callable[..., Path], worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    board = mount("-t", "tmpfs", "-o", "ro,mode=0700", "tmpfs")
    watched, engine = exporter(board), worker(board)
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    assert "[Errno 30] Read-only file system" in the_only(engine.end())
    watched.stop()


def test_a_board_that_is_to_become_read_only(
    mount: Callable[..., Path], worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    """While a worker writes to it, the kernel refuses; an exporter may see it read-only."""
    board = mount("-t", "tmpfs", "-o", "mode=0700", "tmpfs")
    engine = worker(board)
    command = ["mount", "-o", "remount,ro", str(board)]
    assert subprocess.run(command, capture_output=True, check=False).returncode
    aside = mount("--bind", "-o", "ro", str(board))
    with pytest.raises(OSError, match="Read-only"):
        (aside / "mine").touch()
    watched = exporter(aside)
    watched.wait_until(200)
    engine.call()
    watched.wait_for_calls(ROUND)
    assert engine.end() == []
    watched.stop()


@pytest.mark.usefixtures("root")
def test_a_board_that_may_not_be_written_to(
    open_path: Path, worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    """A shared one, of a group that may only look into it."""
    board = open_path / "board"
    board.mkdir(mode=0o755)
    os.chown(board, -1, NOBODY)
    shared = {"WS_GUARD_BOARD_GROUP": str(NOBODY)}
    watched, engine = exporter(board, **shared), worker(board, str(NOBODY), **shared)
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    assert "[Errno 13] Permission denied" in the_only(engine.end())
    watched.stop()


# -- gone -------------------------------------------------------------------------------------


def test_a_shared_board_that_nobody_made(
    tmp_path: Path, worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    board, shared = tmp_path / "board", {"WS_GUARD_BOARD_GROUP": str(os.getegid())}
    watched, engine = exporter(board, **shared), worker(board, **shared)
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    assert f"not observed: board {board}: No such file or directory" in the_only(engine.end())
    watched.stop()


def test_a_board_that_is_removed_under_its_worker(
    tmp_path: Path, worker: Callable[..., Worker], exporter: Callable[..., Exporter]
) -> None:
    board = tmp_path / "board"
    watched, engine = exporter(board), worker(board)
    watched.wait_until(200)
    shutil.rmtree(board)
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    for _ in range(3):
        engine.call()
        engine.describe(10)
    # Another in its place is another board.
    board.mkdir(mode=0o700)
    engine.call()
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    line = the_only(engine.end())
    assert f"no longer observed: somebody has removed {board}" in line
    assert os.listdir(board) == []
    watched.stop()


# -- silent -----------------------------------------------------------------------------------


def test_a_board_that_does_not_answer(
    silent: tuple[Path, subprocess.Popen[str]],
    worker: Callable[..., Worker],
    exporter: Callable[..., Exporter],
) -> None:
    """The server of its file system is stopped: every look at it waits for good."""
    board, server = silent
    watched = exporter(board)
    watched.wait_until(503, "[-]workers_reporting failed: no worker reports yet")
    stop(server)
    watched.wait_until(503, "[-]board_readable failed: the board cannot be read: the last good")
    engine = worker(board)
    engine.call()
    engine.describe(10)
    line = the_only(engine.end())
    assert f"not observed: board {board} did not answer within 5 s" in line
    watched.stop()


def test_a_board_that_somebody_else_serves(
    silent: tuple[Path, subprocess.Popen[str]],
    worker: Callable[..., Worker],
    exporter: Callable[..., Exporter],
) -> None:
    """It answers now. A store into a mapped slot would wait for it once it does not."""
    board, server = silent
    watched, engine = exporter(board / "below"), worker(board / "below")
    engine.call()
    stop(server)
    engine.call()
    line = the_only(engine.end())
    assert f"not observed: board {board}/below is on fuse, whose server" in line
    watched.wait_until(503)
    watched.stop()
