"""What every answer has in common."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest
from slot_worker import ROUTES

from ws_guard.exporter.doorman import HEADERS, Doorman
from ws_guard.exporter.page import CONTENT_SECURITY_POLICY

if TYPE_CHECKING:
    from conftest import Attach, Clock, Get
    from starlette.types import Receive, Scope, Send

    from ws_guard.exporter.refresh import Refresher


@pytest.mark.parametrize("path", ROUTES)
def test_head_is_get_without_a_body(
    attach: Attach, client: Get, refresher: Refresher, path: str
) -> None:
    attach().call(5)
    refresher.refresh()
    full, head = client("GET", path), client("HEAD", path)
    assert (head.status_code, head.content) == (full.status_code, b"")
    assert head.headers["content-type"] == full.headers["content-type"]


@pytest.mark.parametrize("path", [*ROUTES, "/nowhere", "/api/v1/calls"])
def test_every_answer_has_the_headers(attach: Attach, get: Get, path: str) -> None:
    attach()
    answer = get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY


@pytest.mark.parametrize("path", ROUTES)
def test_only_reading_is_possible(attach: Attach, client: Get, path: str) -> None:
    attach()
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client(method, path).status_code == 405


async def hello(_: Scope, __: Receive, send: Send) -> None:
    """An application that says no more than it must."""
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    await send(start)
    await send({"type": "http.response.body", "body": b"hi"})


def test_every_answer_has_the_date_of_its_second(clock: Clock) -> None:
    door = Doorman(hello, CONTENT_SECURITY_POLICY, clock)

    async def dates() -> list[str]:
        transport = httpx.ASGITransport(door)
        async with httpx.AsyncClient(transport=transport, base_url="http://exporter") as client:
            told = []
            # 1,000 s after the Unix epoch are 16 minutes and 40 seconds.
            for clock.now in (1000.0, 1000.9, 1001.0, 1059.9):
                told += (await client.get("/")).headers.get_list("date")
            return told

    assert asyncio.run(dates()) == [
        "Thu, 01 Jan 1970 00:16:40 GMT",
        "Thu, 01 Jan 1970 00:16:40 GMT",
        "Thu, 01 Jan 1970 00:16:41 GMT",
        "Thu, 01 Jan 1970 00:17:39 GMT",
    ]


def test_what_every_answer_has_is_told_once(attach: Attach, get: Get) -> None:
    """No route sets one of these headers by itself."""
    attach()
    for path in ROUTES:
        names = [name.lower() for name, _ in get(path).headers.multi_items()]
        assert len(names) == len(set(names)), path
