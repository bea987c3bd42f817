"""What every answer has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest
from slot_worker import ROUTES, SlotWorker

from ws_guard.exporter.doorman import HEADERS
from ws_guard.exporter.page import CONTENT_SECURITY_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from ws_guard.exporter.refresh import Refresher

    Attach: TypeAlias = Callable[..., SlotWorker]
    Get: TypeAlias = Callable[..., httpx.Response]


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
