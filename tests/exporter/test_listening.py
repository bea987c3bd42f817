"""The sockets of the exporter: one, two for `*`, or one line that says why there is none."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, NoReturn

import httpx
import pytest

from ws_guard.exporter.listening import ListenError, listen
from ws_guard.exporter.server import Exporter

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Start

    from ws_guard.settings import Settings


def test_a_port_that_is_taken(settings: Callable[..., Settings]) -> None:
    (holder,) = listen("127.0.0.1:0")
    address = f"127.0.0.1:{holder.getsockname()[1]}"
    exporter = Exporter(settings(WS_GUARD_LISTEN=address))
    with pytest.raises(ListenError) as caught:
        exporter.start()
    holder.close()
    expected = f"cannot listen on {address}: Address already in use; set WS_GUARD_LISTEN"
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0: .*; set WS_GUARD_LISTEN"):
        listen("192.0.2.1:0")


def test_a_host_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ListenError, match="nowhere:80: Name or service not known; set WS_GUARD"):
        listen("nowhere:80")


@pytest.mark.parametrize("host", ["..", "a" * 64, f"{'a' * 64}.example"])
@pytest.mark.parametrize("port", [0, 80])
def test_a_host_that_is_no_name(host: str, port: int) -> None:
    with pytest.raises(
        ListenError, match="no host name; set WS_GUARD_LISTEN, or --listen, to a free host:port"
    ):
        listen(f"{host}:{port}")


def test_a_star_is_both_families() -> None:
    sockets = listen("*:0")
    names = [one.getsockname() for one in sockets]
    families = [one.family for one in sockets]
    for one in sockets:
        one.close()
    if not socket.has_dualstack_ipv6():
        assert families == [socket.AF_INET]
        return
    assert families == [socket.AF_INET, socket.AF_INET6]
    assert [name[0] for name in names] == ["0.0.0.0", "::"]
    assert names[0][1] == names[1][1] != 0


def test_a_host_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    (one,) = listen("*:0")
    assert one.family == socket.AF_INET
    one.close()


def test_both_families_are_answered(start: Start) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    exporter = start(WS_GUARD_LISTEN="*:0")
    port = exporter.url.rpartition(":")[2]
    assert exporter.url == f"http://127.0.0.1:{port}"
    for host in ("127.0.0.1", "[::1]"):
        assert httpx.get(f"http://{host}:{port}/livez").status_code == 200
