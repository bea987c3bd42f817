"""Serving with a certificate, and being told which file will not do."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from ws_guard.exporter.server import Exporter, ServeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.settings import Settings


def test_tls(settings: Callable[..., Settings], tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    exporter = Exporter(settings(WS_GUARD_TLS_CERT=str(cert), WS_GUARD_TLS_KEY=str(key)))
    exporter.start()
    assert exporter.url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=str(cert))
    assert httpx.get(f"{exporter.url}/livez", verify=trusting).status_code == 200
    exporter.stop()


def test_tls_files_that_do_not_do_are_named(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
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
            Exporter(settings(WS_GUARD_TLS_CERT=str(its_cert), WS_GUARD_TLS_KEY=str(its_key)))
