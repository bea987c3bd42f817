"""Whether certificate and key can be served with; if not, which of them is at fault."""

from __future__ import annotations

import ssl

CERT, KEY = "WS_GUARD_TLS_CERT", "WS_GUARD_TLS_KEY"


class TlsError(ValueError):
    """A file that cannot be served with; the text names it and says what to set."""


def check_tls(cert: str, key: str) -> None:
    """`TlsError` for files that are not a readable certificate and its key."""
    for name, path in ((CERT, cert), (KEY, key)):
        _check_readable(name, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cert)
    except ssl.SSLError:
        raise TlsError(f"{CERT}={cert}: it holds no certificate; set it to a PEM file") from None
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
