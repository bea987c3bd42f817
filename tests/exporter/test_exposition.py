"""Scrapes of one read of the board: written once, whoever asks, and never two at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from slot_worker import busy

from ws_guard.exporter import exposition
from ws_guard.exporter.exposition import Press

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Attach, Start

    from ws_guard.exporter.refresh import Refresher
    from ws_guard.settings import Settings


OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def press(settings: Callable[..., Settings]) -> Press:
    return Press(settings())


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The formats that were really written, in their order."""
    told: list[str] = []
    real = exposition.encoder

    def encoder(accept: str) -> tuple[Callable[..., bytes], str]:
        encode, content_type = real(accept)

        def noting(registry: object) -> bytes:
            told.append(content_type.partition(";")[0])
            return encode(registry)

        return noting, content_type

    monkeypatch.setattr(exposition, "encoder", encoder)
    return told


def test_a_read_is_written_once_for_each_format(
    attach: Attach, refresher: Refresher, press: Press, written: list[str]
) -> None:
    worker = busy(attach)
    snapshot = refresher.refresh()
    first = press.exposition(snapshot, "")
    assert press.exposition(snapshot, "text/plain").text is first.text
    assert press.exposition(snapshot, OPENMETRICS).text.endswith(b"# EOF\n")
    assert press.exposition(snapshot, "").text is first.text
    assert written == ["text/plain", "application/openmetrics-text"]
    worker.call(20, count=7)
    later = press.exposition(refresher.refresh(), "")
    assert later.text != first.text
    assert written[2:] == ["text/plain"]


def test_formats_that_nobody_needs_fill_no_memory(
    attach: Attach, refresher: Refresher, press: Press
) -> None:
    attach()
    snapshot = refresher.refresh()
    accepts = [
        f"{kind}; version={version}; escaping={escaping}"
        for kind, versions in (("text/plain", ("0.0.4", "1.0.0")), (OPENMETRICS[:28], ("1.0.0",)))
        for version in versions
        for escaping in ("allow-utf-8", "underscores", "dots", "values")
    ]
    kinds = {press.exposition(snapshot, accept).content_type for accept in accepts}
    assert len(kinds) > exposition._MOST_KEPT
    assert len(press._kept) <= exposition._MOST_KEPT


def test_many_scrapes_at_once_wait_for_one_and_liveness_for_none(
    attach: Attach, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More scrapes than there are threads, and a board that takes its time to be written."""
    busy(attach)
    go, at_work, most = threading.Event(), [0], [0]
    real = exposition.board_registry

    def slowly(*told: Any) -> object:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        go.wait(20)
        at_work[0] -= 1
        return real(*told)

    monkeypatch.setattr(exposition, "board_registry", slowly)
    exporter = start()
    scrapes = 60
    with ThreadPoolExecutor(scrapes) as pool, httpx.Client(timeout=60) as client:
        asked = [pool.submit(client.get, f"{exporter.url}/metrics") for _ in range(scrapes)]
        while not most[0]:
            pass
        for path in ("/livez", "/readyz", "/health"):
            assert httpx.get(exporter.url + path).status_code in (200, 503)
        go.set()
        assert {each.result().status_code for each in asked} == {200}
    assert most == [1]
