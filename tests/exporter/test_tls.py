"""Serving with a certificate, renewing it, and being told which file will not do."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from doors import (
    connect,
    exporter_process,
    make_pair,
    rest_of,
    serving_with,
    unavailable,
    wait_until,
)

from ws_guard.exporter.server import Exporter, ServeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Start

    from ws_guard.board import Board
    from ws_guard.settings import Settings

GET_LIVEZ = b"GET /livez HTTP/1.1\r\nHost: exporter\r\nConnection: close\r\n\r\n"


class Secret:
    """A Secret as a kubelet mounts it: files are links into `..data`, a link to a directory."""

    def __init__(self, mount: Path) -> None:
        self._mount = mount
        self._updates = 0
        mount.mkdir()
        self.cert, self.key = mount / "tls.crt", mount / "tls.key"
        for file in (self.cert, self.key):
            file.symlink_to(Path("..data", file.name))

    def update(self, name: str, key_of: Path | None = None) -> Path:
        """A new pair takes the place of the old one at once; `key_of` brings another's key."""
        self._updates += 1
        folder = self._mount / f"..2026_{self._updates}"
        folder.mkdir()
        make_pair(folder, name)
        if key_of is not None:
            shutil.copy(key_of / "tls.key", folder)
        link = self._mount / "..data_tmp"
        link.symlink_to(folder.name)
        link.replace(self._mount / "..data")
        return folder


def served_name(url: str) -> str:
    """The common name in the certificate that a new connection is shown."""
    trusting_all = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting_all.check_hostname = False
    trusting_all.verify_mode = ssl.CERT_NONE
    with trusting_all.wrap_socket(connect(url)) as connection:
        connection.sendall(GET_LIVEZ)
        assert rest_of(connection).startswith(b"HTTP/1.1 200 OK\r\n")
        certificate = ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"")
    command = ["openssl", "x509", "-noout", "-subject", "-nameopt", "multiline"]
    done = subprocess.run(command, input=certificate, capture_output=True, text=True, check=True)
    return done.stdout.rpartition("= ")[2].strip()


def hello(url: str, version: bytes) -> bytes:
    """What comes back for a client's hello of this version and no later one."""
    ciphers = b"\xc0\x2b\xc0\x09\xc0\x0a"  # ECDSA with AES, as TLS 1.2 and before have it
    body = version + b"r" * 32 + b"\0" + len(ciphers).to_bytes(2, "big") + ciphers + b"\x01\0"
    # Extensions: signed by ECDSA with SHA-256, on the curve P-256.
    body += b"\0\x10" + b"\0\x0d\0\x04\0\x02\x04\x03" + b"\0\x0a\0\x04\0\x02\0\x17"
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    with connect(url) as connection:
        connection.sendall(b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message)
        with suppress(ConnectionError):
            return connection.recv(4096)
        return b""


def test_a_client_that_trusts_the_certificate_is_served(start: Start, tmp_path: Path) -> None:
    cert, key = make_pair(tmp_path, "exporter")
    exporter = start(**serving_with((cert, key)))
    assert exporter.url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=str(cert))
    with httpx.Client(verify=trusting) as client:
        for _ in range(3):
            assert client.get(f"{exporter.url}/livez").status_code == 200
        assert len(client.get(f"{exporter.url}/metrics").text) > 1_000


def test_old_versions_of_tls_and_plain_http_are_not_spoken(start: Start, tmp_path: Path) -> None:
    exporter = start(**serving_with(make_pair(tmp_path, "exporter")))
    with connect(exporter.url) as plain:
        plain.sendall(GET_LIVEZ)
        assert b"HTTP" not in rest_of(plain)
    # An answer's record has type 22, a server's hello: to TLS 1.2, but not to what came before.
    assert hello(exporter.url, b"\x03\x03")[:1] == b"\x16"
    for version in (b"\x03\0", b"\x03\x01", b"\x03\x02"):
        assert hello(exporter.url, version)[:1] != b"\x16"
    assert served_name(exporter.url) == "exporter"


def test_a_secret_that_the_kubelet_renews(board: Board, tmp_path: Path) -> None:
    board.prepare()
    secret = Secret(tmp_path / "secret")
    first = secret.update("first")
    environ = {"WS_GUARD_BOARD": board.path, **serving_with((secret.cert, secret.key))}
    with exporter_process(environ) as (process, url):
        assert served_name(url) == "first"
        assert process.stderr
        # One that stays open is not disturbed by what follows.
        with httpx.Client(verify=ssl.create_default_context(cafile=first / "tls.crt")) as client:
            assert client.get(f"{url}/livez").status_code == 200
            secret.update("second")
            assert process.stderr.readline() == "ws-guard: the certificate was renewed\n"
            assert served_name(url) == "second"
            assert client.get(f"{url}/livez").status_code == 200

        secret.update("broken", key_of=first)
        told = f"ws-guard: WS_GUARD_TLS_KEY={secret.key}: it is not the key of {secret.cert}; "
        told += "set WS_GUARD_TLS_CERT and WS_GUARD_TLS_KEY to a pair; "
        told += "the certificate from before stays in use\n"
        assert process.stderr.readline() == told
        assert served_name(url) == "second"

        secret.update("third")
        assert process.stderr.readline() == "ws-guard: the certificate was renewed\n"
        assert served_name(url) == "third"


@pytest.mark.usefixtures("quick_renewal")
def test_another_kind_of_key_takes_the_place_of_the_old_one(start: Start, tmp_path: Path) -> None:
    """OpenSSL keeps a certificate for each kind in one context; the old one must be gone."""
    cert, key = make_pair(tmp_path, "elliptic")
    exporter = start(**serving_with((cert, key)))
    assert served_name(exporter.url) == "elliptic"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=rsa -keyout {key}"
    subprocess.run([*command.split(), "-out", str(cert)], check=True, capture_output=True)
    wait_until(lambda: served_name(exporter.url) == "rsa")


@pytest.mark.parametrize(
    "greeting",
    [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.0\r\n\r\n", bytes(4096)],
)
def test_a_handshake_that_goes_wrong_leaves_nothing_open(
    start: Start, tmp_path: Path, greeting: bytes
) -> None:
    exporter = start(**serving_with(make_pair(tmp_path, "exporter")))
    connections: Any = exporter._server.config.http_protocol_class
    with connect(exporter.url) as connection:
        connection.sendall(greeting)
        wait_until(lambda: bool(connections.lobby._open) or bool(greeting))
        connection.shutdown(socket.SHUT_WR)
        rest_of(connection)
    wait_until(lambda: not connections.lobby._open)
    assert served_name(exporter.url) == "exporter"


def test_tls_files_that_do_not_do_are_named(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        unavailable("openssl is not installed")
    key, cert, other, locked = (tmp_path / f"{name}.pem" for name in ("k", "c", "o", "l"))
    for command in (
        f"req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {key} -out {cert}",
        f"genrsa -out {other} 2048",
        f"rsa -in {key} -aes128 -passout pass:secret -out {locked}",
    ):
        subprocess.run([openssl, *command.split()], check=True, capture_output=True)
    for its_cert, its_key, told in (
        (key, key, f"WS_GUARD_TLS_CERT={key}: it holds no certificate; set it to a PEM file"),
        (cert, cert, f"WS_GUARD_TLS_KEY={cert}: it holds no private key; set it to a PEM file"),
        (cert, other, f"WS_GUARD_TLS_KEY={other}: it is not the key of {cert}; set"),
        (cert, locked, f"WS_GUARD_TLS_KEY={locked}: it has a password; set it to a key without"),
        (tmp_path, key, f"WS_GUARD_TLS_CERT={tmp_path}: Is a directory; set it to a readable"),
    ):
        with pytest.raises(ServeError, match=re.escape(told)):
            Exporter(settings(**serving_with((its_cert, its_key))))
