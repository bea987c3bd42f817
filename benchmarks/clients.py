"""Many clients of one server at once, as kubelets and load balancers ask probes.

Each of them has one request under way at any time: a new one begins with the end of the last. One
thread and one epoll drive them all, so that they cost little beside any server written in Python.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

#: An answer that takes longer is an error.
PATIENCE_SECONDS = 20.0
#: How often `between` is called, and clients that wait too long are looked for.
_TICK_SECONDS = 0.1


@dataclass
class Tally:
    """What became of the requests: seconds from asking to the last byte of each good answer."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Take in those of another round."""
        self.seconds += other.seconds
        self.cpu_seconds += other.cpu_seconds
        self.latencies.extend(other.latencies)
        self.errors.update(other.errors)

    def quantile(self, share: float) -> float:
        """Seconds within which this share of the good answers came."""
        return sorted(self.latencies)[int(share * (len(self.latencies) - 1))]


class Crowd:
    """`count` clients that ask one port of loopback for a path.

    With `fresh` each request has a connection of its own, which the server closes, as a kubelet's
    has; otherwise each client keeps one. How the body ends must be known where they are kept.
    """

    def __init__(
        self, port: int, path: str, body: bytes | None, count: int, *, fresh: bool
    ) -> None:
        self._place = ("127.0.0.1", port)
        self._count = count
        self._fresh = fresh
        ending = "Connection: close\r\n" if fresh else ""
        self._request = f"GET {path} HTTP/1.1\r\nHost: exporter\r\n{ending}\r\n".encode()
        self._end = b"" if body is None else b"\r\n\r\n" + body
        self._poll = select.epoll()
        self._waiting: dict[int, _Client] = {}
        self._tally = Tally()

    def ask(self, seconds: float, between: Callable[[], object] = lambda: None) -> Tally:
        """Ask for so long, then wait for what is under way; `between` is called now and then."""
        self._tally = tally = Tally()
        begun, spent = time.monotonic(), time.process_time()
        end, tick = begun + seconds, begun
        for _ in range(self._count):
            self._connect()
        while self._waiting:
            for number, _ in self._poll.poll(_TICK_SECONDS):
                client = self._waiting[number]
                if self._is_answered(client):
                    self._next(client, time.monotonic() < end)
            if (now := time.monotonic()) >= tick:
                tick = now + _TICK_SECONDS
                between()
                self._give_up(now - PATIENCE_SECONDS, again=now < end)
        tally.seconds = time.monotonic() - begun
        tally.cpu_seconds = time.process_time() - spent
        return tally

    def _connect(self) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        client = _Client(connection, time.monotonic())
        self._waiting[connection.fileno()] = client
        self._poll.register(connection, select.EPOLLOUT)
        if (error := connection.connect_ex(self._place)) not in (0, errno.EINPROGRESS):
            self._fail(client, errno.errorcode[error])

    def _is_answered(self, client: _Client) -> bool:
        """Go on with a client as far as its socket allows; whether its request is over."""
        try:
            if not client.asked:
                client.connection.send(self._request)
                client.asked = True
                self._poll.modify(client.connection, select.EPOLLIN)
                return False
            piece = client.connection.recv(65_536)
        except OSError as error:
            return self._fail(client, errno.errorcode[error.errno or 0])
        client.heard += piece
        if piece and (self._fresh or not client.heard.endswith(self._end)):
            return False
        if not client.heard.startswith(b"HTTP/1.1 200 OK\r\n"):
            return self._fail(client, _first_and_last_line(client.heard) or "no answer")
        if not client.heard.endswith(self._end):
            return self._fail(client, "half an answer")
        self._tally.latencies.append(time.monotonic() - client.begun)
        return True

    def _next(self, client: _Client, again: bool) -> None:
        if again and client.connection.fileno() >= 0 and not self._fresh:
            client.begun, client.heard = time.monotonic(), b""
            client.connection.send(self._request)
            return
        self._leave(client)
        if again:
            self._connect()

    def _fail(self, client: _Client, reason: str) -> bool:
        self._tally.errors[reason] += 1
        self._leave(client)
        return True

    def _leave(self, client: _Client) -> None:
        if (number := client.connection.fileno()) >= 0:
            del self._waiting[number]
            self._poll.unregister(number)
            client.connection.close()

    def _give_up(self, before: float, *, again: bool) -> None:
        for client in [one for one in self._waiting.values() if one.begun < before]:
            self._fail(client, "late")
            self._next(client, again)


def _first_and_last_line(answer: bytes) -> str:
    """Its status, and what it says in the end."""
    lines = answer.decode(errors="replace").splitlines()
    return " ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


@dataclass
class _Client:
    connection: socket.socket
    begun: float
    asked: bool = False
    heard: bytes = b""
