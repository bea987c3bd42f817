"""What these tests share: a board of their own, workers on it, a clock that obeys."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import httpx
import pytest

# The helper beside this file also runs as a script.
sys.path.insert(0, str(Path(__file__).parent))

from doors import PATIENCE
from slot_worker import SlotWorker, attaching

from ws_guard.board import Board
from ws_guard.exporter import server
from ws_guard.exporter.app import create_app
from ws_guard.exporter.checks import examine
from ws_guard.exporter.collector import board_registry
from ws_guard.exporter.events import EventLog
from ws_guard.exporter.refresh import Refresher
from ws_guard.exporter.renewal import RenewalThread
from ws_guard.exporter.snapshot import BoardWatch, Snapshot
from ws_guard.settings import Settings, require_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry

    #: The fixtures of these names.
    Attach: TypeAlias = Callable[..., SlotWorker]
    Ask: TypeAlias = Callable[..., tuple[str, str]]
    Get: TypeAlias = Callable[..., httpx.Response]
    Start: TypeAlias = Callable[..., server.Exporter]


class HangingWatch(BoardWatch):
    """A board whose file system does not answer until told to."""

    def __init__(self, board: Board) -> None:
        super().__init__(board)
        self.answering = threading.Event()

    def read(self) -> Snapshot:
        self.answering.wait(PATIENCE)
        return super().read()


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """A private board that nobody has made yet."""
    return Board(str(tmp_path / "board"))


@pytest.fixture
def attach(board: Board) -> Iterator[Attach]:
    """Attaches workers of this process to the board."""
    with attaching(board) as attach:
        yield attach


@pytest.fixture
def spawn(board: Board) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts real worker processes on the board; each has attached when this returns."""
    started: list[subprocess.Popen[str]] = []

    def spawn_one(rank: str = "0", batch: int = 3_080) -> subprocess.Popen[str]:
        script = str(Path(__file__).with_name("slot_worker.py"))
        command = [sys.executable, script, board.path, rank, str(batch)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "attached\n"
        return process

    yield spawn_one
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


@pytest.fixture
def settings(board: Board) -> Callable[..., Settings]:
    """Settings of an exporter over the board, as the environment would give them."""

    def make(**environ: str) -> Settings:
        own = {"WS_GUARD_BOARD": board.path, "WS_GUARD_LISTEN": "127.0.0.1:0"}
        return require_settings(own | environ)

    return make


@pytest.fixture
def start(settings: Callable[..., Settings]) -> Iterator[Start]:
    """`start(**environ)`: an exporter that serves from this process until the test ends."""
    started: list[server.Exporter] = []

    def start_one(**environ: str) -> server.Exporter:
        started.append(server.Exporter(settings(**environ)))
        started[-1].start()
        return started[-1]

    yield start_one
    for exporter in started:
        exporter.stop()


@pytest.fixture
def quick_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporters look at their files all the time."""
    monkeypatch.setattr(server, "RenewalThread", partial(RenewalThread, interval=0.01))


@pytest.fixture
def watch(board: Board, clock: Clock) -> BoardWatch:
    return BoardWatch(board, clock)


@pytest.fixture
def hanging_watch(board: Board) -> HangingWatch:
    return HangingWatch(board)


@pytest.fixture
def refresher(watch: BoardWatch, clock: Clock) -> Refresher:
    """A refresher whose thread nobody started: `refresh()` reads the board."""
    return Refresher(watch, EventLog(), clock=clock)


@pytest.fixture
def client(refresher: Refresher, settings: Callable[..., Settings]) -> Get:
    """One request of the application; `refresher.refresh()` alone reads the board."""
    transport = httpx.ASGITransport(create_app(settings(), refresher))

    async def ask(method: str, path: str, headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://exporter") as client:
            return await client.request(method, path, headers=headers)

    def request(method: str, path: str, **headers: str) -> httpx.Response:
        return asyncio.run(ask(method, path, headers))

    return request


@pytest.fixture
def get(client: Get, refresher: Refresher) -> Get:
    """GET after a fresh read of the board."""

    def one(path: str, **headers: str) -> httpx.Response:
        refresher.refresh()
        return client("GET", path, **headers)

    return one


@pytest.fixture
def registry(refresher: Refresher, settings: Callable[..., Settings]) -> CollectorRegistry:
    return board_registry(refresher.latest, settings())


@pytest.fixture
def ask(watch: BoardWatch, settings: Callable[..., Settings]) -> Ask:
    """(state, detail) of one check, the board read anew."""

    def one(name: str, **environ: str) -> tuple[str, str]:
        found = {check.name: check for check in examine(watch.read(), settings(**environ)).checks}
        return found[name].state, found[name].detail

    return one
