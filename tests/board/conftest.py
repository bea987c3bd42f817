"""What these tests share: boards, worker processes, and the rights of root where there are any."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

# The helper beside this file also runs as a script.
sys.path.insert(0, str(Path(__file__).parent))

from board_worker import LEFT_DOCUMENT, LEFT_ROWS, Worker, make_shape, read

from ws_guard.board import OVERFLOW, Board, Outcome, Slot
from ws_guard.board.format import COUNT_EAGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ws_guard.board import SlotView


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; fail where the real thing has to be there."""
    if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
        pytest.fail(f"WS_GUARD_REQUIRE_REAL=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def root() -> None:
    """Files of another user, devices and processes of another user are root's to make."""
    if os.geteuid() != 0:
        unavailable("this is not root")


@pytest.fixture
def chosen_pids(root: None) -> None:  # noqa: ARG001 - root's to choose as well
    """Whoever starts a process can say which pid it gets."""
    if not os.path.exists("/proc/sys/kernel/ns_last_pid"):
        unavailable("this kernel lets nobody choose the next pid")


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """A private board that nobody has made yet."""
    return Board(str(tmp_path / "board"))


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that other users can reach, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="ws_guard-test-") as path:
        os.chmod(path, 0o755)  # noqa: S103 - that is what it is for
        yield Path(path)


@pytest.fixture
def slot(board: Board) -> Iterator[Slot]:
    """A slot of this process on the board."""
    opened = Slot.on_board(board)
    assert not opened.problem
    yield opened
    opened.close()


@pytest.fixture
def path(board: Board) -> str:
    """A slot that its worker has left: three rows, a document, an event, two runs."""
    slot = Slot.on_board(board)
    slot.describe(LEFT_DOCUMENT)
    for batch in range(1, LEFT_ROWS + 1):
        number, word, _ = slot.add_row(make_shape(batch=batch), 0)
        slot.words[word + COUNT_EAGER] += batch
    slot.begin_run(0, 0, Outcome.EAGER)
    slot.begin_run(0, number, Outcome.OVERFLOW)
    slot.add_event(0, OVERFLOW, 0)
    found = str(slot.path)
    slot.drop()
    return found


@pytest.fixture
def look(board: Board, path: str) -> Callable[[], SlotView]:
    """A reading of that slot as it is now."""
    return lambda: read(board, path)


@pytest.fixture
def start(board: Board) -> Iterator[Callable[..., Worker]]:
    """Starts worker processes, on the board unless on another one."""
    started: list[Worker] = []

    def start_one(*action: str, on: Board = board, **options: Any) -> Worker:
        started.append(Worker(on, *action, **options))
        return started[-1]

    yield start_one
    for worker in started:
        worker.stop()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a file system of a type, with options."""
    mounted: list[Path] = []

    def mount_one(kind: str, options: str) -> Path:
        point = tmp_path / f"{kind}{len(mounted)}"
        point.mkdir()
        command = ["mount", "-t", kind, "-o", options, kind, str(point)]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            unavailable(f"mount: {error}")
        if answer.returncode:
            unavailable(f"{' '.join(command)}: {answer.stderr.strip()}")
        mounted.append(point)
        return point

    yield mount_one
    for point in mounted:
        subprocess.run(["umount", str(point)], check=True)
