"""The exporter as a server: from its settings to a clean end, one line for what is in the way."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn

from ws_guard.board import BoardError, in_time, open_board
from ws_guard.remarks import remark
from ws_guard.settings import SettingError, Settings

from .app import create_app
from .auth import users_of
from .connection import connection_class, raise_file_limit
from .listening import BACKLOG, listen
from .refresh import Refresher
from .renewal import Renewal, RenewalThread
from .tls import Certificate
from .users import Users

_DRAIN_SECONDS = 3
#: A read of a large board makes a thousand system calls, and behind each the reading thread and the
#: serving one may wait so long for each other; Python's own 5 ms would add up to seconds.
_SWITCH_SECONDS = 0.0001
_KEEP_ALIVE_SECONDS = 5
#: A request's line and headers together.
_MOST_HEADER_BYTES = 16_384
_REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what to call instead


class ServeError(SettingError):
    """The exporter cannot serve as asked; the text is one line that says what to set."""


class _Server(uvicorn.Server):
    """uvicorn, but not woken ten times a second to see whether to end: most exporters are idle."""

    _wake: Callable[[], object] | None = None

    @property
    def should_exit(self) -> bool:
        """Whether to end; setting it, from any thread or signal handler, wakes the server."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, wanted: bool) -> None:
        self._should_exit = wanted
        if wanted and self._wake is not None:
            # A loop that is closed has ended already.
            with suppress(RuntimeError):
                self._wake()

    async def main_loop(self) -> None:
        """Until it is to end; uvicorn's own method of that name sleeps a tenth of a second."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        while not await self.on_tick(0):
            await woken.wait()


class Exporter:
    """The exporter in this process: `start` and `stop` it, or `run` it until a signal."""

    def __init__(self, settings: Settings, refresher: Refresher | None = None) -> None:
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._settings = settings
        certificate, users = _certificate(settings), _users(settings)
        renewals = [one for one in (certificate and certificate.renewal, users) if one]
        self._renewals = RenewalThread(renewals)
        self._server = _Server(_config(settings, refresher, certificate, users))

    @property
    def url(self) -> str:
        """Where this host reaches it; after `bind`."""
        host, port = self._sockets[0].getsockname()[:2]
        return self._url(_REACHABLE.get(host, host), port)

    def bind(self) -> None:
        """Take the address; `ListenError` where that cannot be."""
        if not self._sockets:
            self._sockets = listen(self._settings.listen)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, or until `stop`; then answer what was asked, and end."""
        self.bind()
        host, port = self._sockets[0].getsockname()[:2]
        where = self._url(host, port)
        remark(f"ws-guard exporter on {where}, board {self._settings.board}")
        # A look at the board may hang, as the board itself; answers must not.
        threading.Thread(target=_tell_of_board, args=(self._settings,), daemon=True).start()
        with _ending_on_signal(self._server):
            self._serve()

    def start(self) -> None:
        """Serve from a thread of its own. The address is taken when this returns."""
        self.bind()
        self._thread = threading.Thread(target=self._serve, name="ws-guard-exporter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End serving, and wait for it."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        self._renewals.start()
        try:
            self._server.run(self._sockets)
        finally:
            self._renewals.stop()

    def _url(self, host: str, port: int) -> str:
        scheme = "https" if self._settings.tls_cert else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; 0 then. `ServeError` or `ListenError` before it begins.

    The process is the exporter's own: how many files it opens and how its threads take turns is
    changed for all of it.
    """
    _refuse_what_is_no_directory(settings.board)
    raise_file_limit()
    sys.setswitchinterval(_SWITCH_SECONDS)
    Exporter(settings).run()
    return 0


def _refuse_what_is_no_directory(board: str) -> None:
    """`ServeError` for a file: what may still come, or be mended, is told by /readyz instead."""
    try:
        no_directory = not stat.S_ISDIR(in_time(lambda: os.stat(board), seconds=1).st_mode)
    except OSError as error:  # a TimeoutError among them
        no_directory = error.errno == errno.ENOTDIR
    if no_directory:
        raise ServeError(
            f"board {board} is not a directory; --board or WS_GUARD_BOARD names another"
        )


def _tell_of_board(settings: Settings) -> None:
    """Say what is in the way, for whoever starts the exporter: probes are told by /readyz."""
    try:
        board = open_board(settings.board, settings.board_group, settings.trusted_uids)
        if not board.is_there():
            whose = "the first worker makes it" if board.group is None else "mount or make it"
            remark(
                f"ws-guard: there is no board {board.path} yet: {whose}; --board or "
                "WS_GUARD_BOARD names another"
            )
    except BoardError as error:
        remark(f"ws-guard: {error}")


def _config(
    settings: Settings,
    refresher: Refresher | None,
    certificate: Certificate | None,
    users: Renewal[Users] | None,
) -> uvicorn.Config:
    try:
        app = create_app(settings, refresher, users)
    except BoardError as error:
        raise ServeError(str(error)) from None
    config = uvicorn.Config(
        app,
        http=connection_class(certificate),
        ws="none",
        loop="asyncio",
        lifespan="on",
        access_log=False,
        log_config=None,
        # It writes a line for each bad request: strangers must not fill a log that perhaps nobody
        # reads.
        log_level="error",
        server_header=False,
        # By the doorman: uvicorn would wake every second to know the date.
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    config.load()
    return config


def _certificate(settings: Settings) -> Certificate | None:
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ServeError("WS_GUARD_TLS_CERT and WS_GUARD_TLS_KEY go together; set both or none")
    if not settings.tls_cert or not settings.tls_key:
        return None
    try:
        return Certificate(settings.tls_cert, settings.tls_key)
    except ValueError as error:
        raise ServeError(str(error)) from None


def _users(settings: Settings) -> Renewal[Users] | None:
    if not settings.basic_auth_file:
        return None
    try:
        return users_of(settings.basic_auth_file)
    except ValueError as error:
        raise ServeError(str(error)) from None


@contextmanager
def _ending_on_signal(server: uvicorn.Server) -> Iterator[None]:
    """SIGTERM and SIGINT end the server, and only that.

    uvicorn handles them while it serves, but raises them again at its end; and one that comes
    before it serves must not be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_signal: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
