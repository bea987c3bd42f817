"""The sockets that the exporter listens on: one, or one for each family of addresses."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

from ws_guard.settings import SettingError, parse_listen

BACKLOG = 512
_MORE_ATTEMPTS = 7


class ListenError(SettingError):
    """The address cannot be listened on; the text is one line that says what to set."""


def listen(address: str) -> list[socket.socket]:
    """Listening sockets for `host:port`: two, one for each family, for `*`."""
    hosts, port = parse_listen(address)
    # A port that the system chose for one family may be in use in the other.
    for _ in range(_MORE_ATTEMPTS if port == 0 else 0):
        with suppress(OSError, UnicodeError):
            return _listen_on(hosts, port)
    try:
        return _listen_on(hosts, port)
    except (OSError, UnicodeError) as error:
        # A label of a host name that is empty or too long is no OSError.
        reason = error.strerror or str(error) if isinstance(error, OSError) else "no host name"
        raise ListenError(
            f"cannot listen on {address}: {reason}; set WS_GUARD_LISTEN, or --listen, to a free "
            "host:port, or to 127.0.0.1:0 for any that is free"
        ) from None


def _listen_on(hosts: list[str], port: int) -> list[socket.socket]:
    if len(hosts) > 1 and not socket.has_dualstack_ipv6():
        hosts = hosts[:1]
    with ExitStack() as undo:
        taken: list[socket.socket] = []
        for host in hosts:
            bound = _bind(host, taken[0].getsockname()[1] if taken else port)
            undo.callback(bound.close)
            taken.append(bound)
        undo.pop_all()
    return taken


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # The v4 half of `*` has a socket of its own.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(where)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
