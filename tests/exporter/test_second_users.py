"""Boards between real users: an engine, an exporter beside it, and strangers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest
from doors import exporter_process, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
ENGINE, EXPORTER, STRANGER = 20_001, 20_002, 20_003
SHARED = 20_100

#: Gives up root for good; done inside, since another user may not reach the interpreter.
BECOME = """
def become(user, group):
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    os.umask(0o077)
"""
WORK = f"""
import os, sys, time
from slot_worker import SlotWorker
from ws_guard.board import open_board
{BECOME}
become(int(sys.argv[4]), int(sys.argv[5]))
board = open_board(sys.argv[1], sys.argv[2] or None)
worker = SlotWorker(board, rank=sys.argv[3], planned=[])
worker.call(5)
print("attached", flush=True)
time.sleep(600)
"""


SERVE = f"""
import encodings.idna, os, sys
import anyio._backends._asyncio
from ws_guard.exporter.server import serve
from ws_guard.settings import require_settings
{BECOME}
become(int(os.environ["BECOME_USER"]), int(os.environ["BECOME_GROUP"]))
sys.exit(serve(require_settings()))
"""


class Place(NamedTuple):
    """A directory that every user reaches."""

    path: Path

    def board(self, owner: int, group: int, mode: int) -> Path:
        """A board directory as an administrator makes it."""
        path = self.path / "board"
        path.mkdir()
        os.chown(path, owner, group)
        path.chmod(mode)
        return path


@pytest.fixture
def place() -> Iterator[Place]:
    if os.geteuid() != 0:
        unavailable("this is not root: there is no second user to be")
    with tempfile.TemporaryDirectory(prefix="ws_guard-test-") as path:
        os.chmod(path, 0o755)  # noqa: S103 - that is what it is for
        yield Place(Path(path))


@pytest.fixture
def work() -> Iterator[Callable[..., None]]:
    """Starts workers as some user; each has attached when this returns."""
    started: list[subprocess.Popen[str]] = []

    def start(board: Path, user: int, rank: str, group: str = "", gid: int | None = None) -> None:
        rights = (str(user), str(user if gid is None else gid))
        process = subprocess.Popen(
            [sys.executable, "-c", WORK, str(board), group, rank, *rights],
            env=os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "attached\n"

    yield start
    for process in started:
        process.kill()
        process.communicate()


def exported(user: int, group: int, board: Path, **environ: str) -> dict[str, str]:
    """What an exporter of this user tells: ranks, the check of the board, and statuses."""
    rights = {"BECOME_USER": str(user), "BECOME_GROUP": str(group)}
    with exporter_process({"WS_GUARD_BOARD": str(board), **rights, **environ}, SERVE) as (_, url):
        health = httpx.get(f"{url}/health").json()
        assert httpx.get(f"{url}/livez").status_code == 200
        text = httpx.get(f"{url}/health").text
        assert str(board) not in text
        return {
            "ranks": ",".join(worker["rank"] for worker in health["workers"]),
            "state": health["checks"][0]["state"],
            "detail": health["checks"][0]["detail"],
            "metrics": str(httpx.get(f"{url}/metrics").status_code),
        }


def test_a_shared_board_is_read_by_its_group(place: Place, work: Callable[..., None]) -> None:
    """As in a pod: the directory has the group that both are in, and the set-group-id bit."""
    board = place.board(ENGINE, SHARED, 0o2770)
    work(board, ENGINE, "0", group=str(SHARED), gid=SHARED)
    (slot,) = board.glob("*.slot")
    found = slot.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (ENGINE, SHARED, 0o640)
    told = exported(EXPORTER, SHARED, board, WS_GUARD_BOARD_GROUP=str(SHARED))
    assert told == {"ranks": "0", "state": "ok", "detail": "", "metrics": "200"}


def test_a_third_user_on_a_shared_board_is_read_where_trusted(
    place: Place, work: Callable[..., None]
) -> None:
    board = place.board(ENGINE, SHARED, 0o2770)
    work(board, ENGINE, "0", group=str(SHARED), gid=SHARED)
    work(board, STRANGER, "1", group=str(SHARED), gid=SHARED)
    told = exported(EXPORTER, SHARED, board, WS_GUARD_BOARD_GROUP=str(SHARED))
    assert told["ranks"] == "0"
    assert told["detail"] == (
        "1 file on the board passed over: it belongs to uid 20003, which is not trusted"
    )
    trusting = {"WS_GUARD_BOARD_GROUP": str(SHARED), "WS_GUARD_TRUSTED_UIDS": str(STRANGER)}
    told = exported(EXPORTER, SHARED, board, **trusting)
    assert (told["ranks"], told["detail"]) == ("0,1", "")


def test_who_is_not_in_the_group_sees_nothing(place: Place, work: Callable[..., None]) -> None:
    board = place.board(ENGINE, SHARED, 0o2770)
    work(board, ENGINE, "0", group=str(SHARED), gid=SHARED)
    told = exported(STRANGER, STRANGER, board, WS_GUARD_BOARD_GROUP=str(SHARED))
    assert told == {
        "ranks": "",
        "state": "fail",
        "detail": "the board cannot be read: Permission denied",
        "metrics": "503",
    }
    (slot,) = board.glob("*.slot")
    cat = ["cat", str(slot)]
    done = subprocess.run(
        cat, user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_private_board_is_its_users_alone(place: Place, work: Callable[..., None]) -> None:
    home = place.path / "home"
    home.mkdir()
    os.chown(home, ENGINE, ENGINE)
    board = home / "board"
    work(board, ENGINE, "0")
    (slot,) = board.glob("*.slot")
    assert (board.stat().st_uid, board.stat().st_mode & 0o7777) == (ENGINE, 0o700)
    assert (slot.stat().st_uid, slot.stat().st_mode & 0o7777) == (ENGINE, 0o600)
    told = exported(ENGINE, ENGINE, board)
    assert (told["ranks"], told["state"]) == ("0", "ok")
    told = exported(EXPORTER, EXPORTER, board)
    assert (told["ranks"], told["state"], told["metrics"]) == ("", "fail", "503")
    # Not even root reads what another planted under its name.
    told = exported(0, 0, board)
    assert (told["ranks"], told["state"], told["metrics"]) == ("", "fail", "503")


def test_a_board_that_a_stranger_planted_is_not_used(
    place: Place, work: Callable[..., None]
) -> None:
    """In /dev/shm anybody can make the directory first."""
    board = place.board(STRANGER, STRANGER, 0o777)
    with pytest.raises(AssertionError):
        work(board, ENGINE, "0")
    assert list(board.iterdir()) == []
    told = exported(ENGINE, ENGINE, board)
    assert told["detail"].startswith(
        "the board cannot be read: the board belongs to uid 20003, not to 20001"
    )


def test_a_stranger_cannot_make_a_slot_of_anothers(place: Place, work: Callable[..., None]) -> None:
    """On a shared board: a link to, and a second name of, somebody else's slot, and a device."""
    board = place.board(ENGINE, SHARED, 0o2770)
    work(board, ENGINE, "0", group=str(SHARED), gid=SHARED)
    (slot,) = board.glob("*.slot")
    os.symlink(slot, board / "link.slot")
    os.mkfifo(board / "fifo.slot")
    os.mknod(board / "zero.slot", 0o020666, os.makedev(1, 5))
    other = place.path / "other"
    other.write_bytes(slot.read_bytes())
    os.chown(other, ENGINE, SHARED)
    os.link(other, board / "hard.slot")
    told = exported(EXPORTER, SHARED, board, WS_GUARD_BOARD_GROUP=str(SHARED))
    assert told["ranks"] == "0"
    assert told["detail"].startswith("4 files on the board passed over: ")
