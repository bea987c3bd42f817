"""Clients that linger, dribble and flood, by real sockets: /livez answers all the same."""

from __future__ import annotations

import select
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from doors import PATIENCE, ask, connect, exporter_process, make_pair, rest_of, serving_with
from slot_worker import busy

from ws_guard.exporter import connection as connection_module
from ws_guard.exporter.server import Exporter

if TYPE_CHECKING:
    import socket

    from conftest import Attach, Start

    from ws_guard.board import Board


GET = b"GET /livez HTTP/1.1\r\nHost: exporter\r\n\r\n"
CHUNKED = GET[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
CLOSING = b"GET /livez HTTP/1.1\r\nHost: exporter\r\nConnection: close\r\n\r\n"


@pytest.fixture
def start_with(start: Start, tmp_path: Path) -> Start:
    """`start_with(tls)`: an exporter, with a certificate where it is wanted."""
    return lambda tls: start(**serving_with(make_pair(tmp_path, "exporter")) if tls else {})


def alive(exporter: Exporter) -> bool:
    return httpx.get(f"{exporter.url}/livez", verify=False).status_code == 200  # noqa: S501 - made for the test


@pytest.mark.parametrize(
    ("tls", "part"),
    [
        (False, b""),
        (False, b"GET /livez HTTP/1.1\r\nX-Slow: "),
        (False, GET[:-2]),
        (True, b""),
        (True, b"\x16\x03\x01\x02\x00\x01"),  # a client's hello, begun
    ],
)
def test_those_that_linger_longest_make_room(
    start_with: Start, monkeypatch: pytest.MonkeyPatch, tls: bool, part: bytes
) -> None:
    """Three times as many as there is room for, and none ever finishes its request."""
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 10)
    exporter = start_with(tls)
    with ExitStack() as stack:
        lingering = [stack.enter_context(connect(exporter.url)) for _ in range(30)]
        for one in lingering:
            with suppress(ConnectionError):
                one.sendall(part)
        assert alive(exporter)
        # The first have left; the last are still there.
        assert rest_of(lingering[0]) == b""
        assert not select.select([lingering[-1]], [], [], 0)[0]


def test_one_that_gets_answers_stays_where_those_that_linger_leave(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 4)
    exporter = start()
    with httpx.Client() as client, ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(connect(exporter.url)).sendall(b"GET ")
            assert client.get(f"{exporter.url}/livez").status_code == 200
        # Twelve requests over one connection: it is the exporter that would have closed it.
        transport: Any = client._transport
        assert [
            one.info().rpartition("Request Count: ")[2] for one in transport._pool.connections
        ] == ["12"]


def dribble(connection: socket.socket, piece: bytes) -> bytes:
    """Send a piece again and again until the exporter has had enough; what it said meanwhile."""
    told = b""
    with suppress(ConnectionError):
        while True:
            connection.sendall(piece)
            if select.select([connection], [], [], 0.02)[0]:
                if not (heard := connection.recv(65_536)):
                    break
                told += heard
    return told


@pytest.mark.parametrize("tls", [False, True])
def test_a_request_that_never_ends_is_cut_off(
    start_with: Start, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setattr(connection_module, "EXCHANGE_SECONDS", 0.3)
    exporter = start_with(tls)
    with connect(exporter.url) as connection:
        if not tls:
            connection.sendall(GET[:-2] + b"X-Slow: ")
        assert dribble(connection, b"\x16" if tls else b"z") in (b"", b"\x15\x03\x01\0\x02\x02\x46")
    assert alive(exporter)


def test_a_body_that_never_ends_is_cut_off(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "EXCHANGE_SECONDS", 0.3)
    exporter = start()
    with connect(exporter.url) as connection:
        connection.sendall(GET[:-2] + b"Content-Length: 1000000000\r\n\r\n")
        assert dribble(connection, b"z").startswith(b"HTTP/1.1 200 OK")
    assert alive(exporter)


def ask_without_end(connection: socket.socket, request: bytes) -> None:
    connection.settimeout(PATIENCE)
    while True:
        connection.sendall(request * 100)


def test_an_answer_that_is_never_taken_is_given_up(
    attach: Attach, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(attach)
    monkeypatch.setattr(connection_module, "EXCHANGE_SECONDS", 0.5)
    exporter = start()
    asked = GET.replace(b"/livez", b"/metrics")
    # Nothing is read, until no more requests are taken, and then the connection is cut.
    with connect(exporter.url) as connection, pytest.raises(ConnectionError):
        ask_without_end(connection, asked)
    assert alive(exporter)


def test_headers_have_a_limit(start: Start) -> None:
    exporter = start()
    most = 16_384
    fits = CLOSING[:-2] + b"X-Long: " + b"z" * (most - 500) + b"\r\n\r\n"
    assert ask(exporter.url, fits).startswith(b"HTTP/1.1 200 OK")
    for request in (
        CLOSING[:-2] + b"X-Long: " + b"z" * 2 * most,
        CLOSING[:-2] + b"X: y\r\n" * most,
        b"GET /" + b"z" * 2 * most,
        b"\r\n" * most,
    ):
        assert ask(exporter.url, request)[:15] in (b"HTTP/1.1 400 Ba", b"")
    assert alive(exporter)


def test_bad_requests_write_no_line(board: Board) -> None:
    """A stranger must not fill a log that perhaps nobody reads."""
    board.prepare()
    environ = {"WS_GUARD_BOARD": board.path}
    with exporter_process(environ) as (process, url):
        for _ in range(3):
            assert ask(url, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
            ask(url, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")
            # A good request, and a body that is none: at once, and after the answer.
            assert ask(url, CHUNKED + b"-1\r\n").startswith(b"HTTP/1.1 400")
            assert ask(url, CHUNKED.replace(b"GET", b"HEAD") + b"-1\r\n") == b""
            with connect(url) as connection:
                connection.sendall(CHUNKED)
                assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
                connection.sendall(b"-1\r\n")
                rest_of(connection)
        process.terminate()
        _, told = process.communicate(timeout=PATIENCE)
    assert (process.returncode, told) == (0, "")


@pytest.mark.parametrize(
    ("files", "connections"), [(-1, 1024), (1 << 20, 1024), (1024, 512), (3, 1)]
)
def test_connections_take_half_of_the_files_at_most(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    monkeypatch.setattr(connection_module.resource, "getrlimit", lambda _: (files, files))
    assert connection_module._most_connections() == connections


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 1 << 20), [(4096, 1 << 20)]),
        ((1024, 2000), [(2000, 2000)]),
        ((1024, -1), [(4096, -1)]),
        ((1 << 20, 1 << 20), []),
        ((-1, -1), []),
    ],
)
def test_a_process_of_its_own_opens_more_files(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: list[tuple[int, int]]
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(connection_module.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(connection_module.resource, "setrlimit", lambda _, new: told.append(new))
    connection_module.raise_file_limit()
    assert told == raised
