"""What tests of a running exporter share: a process, raw connections, certificates, a user."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 20.0
SERVE = "import sys; from ws_guard.settings import require_settings; "
SERVE += "from ws_guard.exporter.server import serve; sys.exit(serve(require_settings()))"

#: Of the one user of these tests.
PASSWORD = "secret"  # noqa: S105 - nobody else has it


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; fail where the real thing has to be there."""
    if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
        pytest.fail(f"WS_GUARD_REQUIRE_REAL=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def wait_until(holds: Callable[[], bool]) -> None:
    """Poll; a machine may be slow, but not that slow."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def hashed(password: str = PASSWORD, cost: int = 4) -> bytes:
    """The bcrypt hash of a password, of which 72 bytes count; the least cost is the quickest."""
    try:
        import bcrypt
    except ImportError:
        unavailable("bcrypt is not installed")
    return bcrypt.hashpw(password.encode()[:72], bcrypt.gensalt(cost))


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 with this common name, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        unavailable("openssl is not installed")
    cert, key = folder / "tls.crt", folder / "tls.key"
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    command += f" -subj /CN={name} -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


def serving_with(pair: tuple[Path, Path]) -> dict[str, str]:
    """The settings that serve with a certificate and its key."""
    cert, key = pair
    return {"WS_GUARD_TLS_CERT": str(cert), "WS_GUARD_TLS_KEY": str(key)}


def connect(url: str) -> socket.socket:
    """A plain connection to the exporter."""
    place = urlsplit(url)
    assert place.hostname
    assert place.port
    return socket.create_connection((place.hostname, place.port), PATIENCE)


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the other side ends it, in whatever way."""
    told = b""
    try:
        while piece := connection.recv(65_536):
            told += piece
    except ConnectionError:
        pass
    return told


def ask(url: str, request: bytes) -> bytes:
    """The answer to some bytes, be they a request or not."""
    with connect(url) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass
        return rest_of(connection)


@contextmanager
def exporter_process(
    environ: dict[str, str], script: str = SERVE, **options: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An exporter as a process of its own, and where it is reached."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"WS_GUARD_LISTEN": "127.0.0.1:0"} | environ,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        assert process.stderr
        line = process.stderr.readline()
        found = re.fullmatch(r"ws-guard exporter on (https?://\S+), board (.*)\n", line)
        assert found is not None, line + process.stderr.read()
        assert found[2] == environ["WS_GUARD_BOARD"]
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()
