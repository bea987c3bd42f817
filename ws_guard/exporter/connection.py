"""Connections to the exporter: how many there may be, and how long a client may take.

uvicorn's `limit_concurrency` answers 503 to everybody once enough idle connections are open, and it
has no limit for a request that never ends; so the one that lingers longest leaves instead.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from typing import TYPE_CHECKING, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from .tls import Certificate

#: A request must be read, answered, and its answer taken, so long after the one before it.
EXCHANGE_SECONDS = 15.0
MOST_CONNECTIONS = 1024


class Lobby:
    """Open connections, the one that lingers longest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[Connection, None] = {}

    def enter(self, one: Connection) -> None:
        """Take a connection in; where there is no room, another must leave."""
        if len(self._open) >= self._most:
            self.leave(longest := next(iter(self._open)))
            longest.abort()
        self._open[one] = None

    def progress(self, one: Connection) -> None:
        """A connection has had an answer: it lingers less than all others."""
        if one in self._open:
            self._open[one] = self._open.pop(one)

    def leave(self, one: Connection) -> None:
        """A connection has ended."""
        self._open.pop(one, None)


class Connection(H11Protocol):
    """uvicorn's connection with a deadline, a place in the lobby and a certificate that changes."""

    lobby: ClassVar[Lobby]
    certificate: ClassVar[Certificate | None] = None

    _wire: asyncio.Transport
    _deadline: asyncio.TimerHandle | None = None
    _securing: asyncio.Task[None] | None = None
    _begun = False
    _early = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin; with a certificate once hands are shaken, under the same deadline."""
        self._wire = transport
        self.lobby.enter(self)
        self._expect_exchange()
        if self.certificate is None:
            self._begin(transport)
        else:
            # Before this task's first step, the loop reads nothing of the connection.
            self._securing = self.loop.create_task(self._secure(self.certificate.context))

    async def _secure(self, context: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(self._wire, self, context, server_side=True)
        except OSError:
            secured = None
        if secured is None or self._wire.is_closing():
            self._end()
            self._wire.abort()
            return
        self._begin(secured)
        if self._early:
            super().data_received(self._early)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._begun = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take in a piece; what comes with the last of a handshake waits for its end."""
        if self._begun:
            super().data_received(data)
        else:
            self._early += data

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, where there may still be an answer, and one with a body.

        uvicorn answers in any case, and twice where a request came before: each is a traceback.
        """
        if self.cycle is not None:
            self.cycle.disconnected = True
        state = self.conn.our_state
        asked_for_head = state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
        if state in (h11.IDLE, h11.SEND_RESPONSE) and not asked_for_head:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """An exchange is over; the next one has as long."""
        self.lobby.progress(self)
        self._expect_exchange()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._end()
        if self._begun:
            super().connection_lost(exc)

    def abort(self) -> None:
        """End at once, whatever is still to be sent."""
        self._wire.abort()

    def _expect_exchange(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(EXCHANGE_SECONDS, self.abort)

    def _end(self) -> None:
        self.lobby.leave(self)
        if self._deadline is not None:
            self._deadline.cancel()


def connection_class(certificate: Certificate | None) -> type[Connection]:
    """The connections of one exporter: they share a lobby."""
    shared_lobby, shared_certificate = Lobby(_most_connections()), certificate

    class ExporterConnection(Connection):
        lobby = shared_lobby
        certificate = shared_certificate

    return ExporterConnection


def _most_connections() -> int:
    """Half of the files that this process may open; the board needs some as well."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else max(1, min(MOST_CONNECTIONS, files // 2))


def raise_file_limit(least: int = 4 * MOST_CONNECTIONS) -> None:
    """Let this process open as many files as its hard limit allows, up to `least`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < least:
        wanted = least if hard < 0 else min(least, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
