"""The certificate that we serve with, renewed while we serve; and which file is at fault if not."""

from __future__ import annotations

import ssl

from .renewal import Renewal

CERT, KEY = "WS_GUARD_TLS_CERT", "WS_GUARD_TLS_KEY"


class TlsError(ValueError):
    """A file that cannot be served with; the text names it and says what to set."""


class Certificate:
    """A certificate and its key. `TlsError` for files that are not a readable pair."""

    def __init__(self, cert: str, key: str) -> None:
        self.renewal = Renewal("the certificate", (cert, key), lambda: load_pair(cert, key))

    @property
    def context(self) -> ssl.SSLContext:
        """What a connection that begins now is served with."""
        return self.renewal.value


def load_pair(cert: str, key: str) -> ssl.SSLContext:
    """A server's context with the pair; `TlsError` naming the file that will not do."""
    for name, path in ((CERT, cert), (KEY, key)):
        _check_readable(name, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert)
    except ssl.SSLError:
        raise TlsError(f"{CERT}={cert}: it holds no certificate; set it to a PEM file") from None
    # No client certificates, TLS 1.2 at least: Python's own defaults for a server.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A key with a password would ask a terminal for it.
        context.load_cert_chain(cert, key, password=_no_password)
    except _PasswordError:
        raise TlsError(f"{KEY}={key}: it has a password; set it to a key without one") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"{KEY}={key}: it is not the key of {cert}; set {CERT} and {KEY} to a pair"
            ) from None
        raise TlsError(f"{KEY}={key}: it holds no private key; set it to a PEM file") from None
    except OSError as error:
        raise TlsError(f"{CERT}={cert}: {error.strerror}; set it to a readable PEM file") from None
    return context


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise TlsError(f"{name}={path}: {error.strerror}; set it to a readable PEM file") from None


class _PasswordError(Exception):
    """A key asks for a password."""


def _no_password() -> str:
    raise _PasswordError
