"""Short rounds of what `make nightly` does at length: hostile slots and hostile requests."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING

import fuzz_slots
import httpx
import pytest
from doors import exporter_process
from http_abuse import abuse, openapi
from slot_mutations import MUTATIONS, mutate
from slot_worker import busy

from ws_guard.board.format import SLOT_BYTES
from ws_guard.exporter.derive import Deriver

if TYPE_CHECKING:
    from conftest import Attach

    from ws_guard.board import Board


def a_seed() -> int:
    """Another one each time; what fails prints it."""
    return time.time_ns() % 1_000_000_000


def test_no_slot_gets_beyond_an_error() -> None:
    inputs = 2_000
    tally = fuzz_slots.fuzz(inputs, a_seed())
    assert sum(tally.values()) == inputs
    # Most get past the checksums, or little would have been tried.
    assert inputs > tally["read"] > inputs // 2


def test_what_the_fuzzer_makes_is_written_inside_the_slot() -> None:
    made = [mutate(Random(number), {"engine": "0"}) for number in range(500)]  # noqa: S311 - to be made again
    patches = [patch for each, _ in made for patch in each]
    assert all(0 <= place <= SLOT_BYTES - len(data) for place, data in patches)
    assert {length < SLOT_BYTES for _, length in made} == {True, False}
    assert len(set(MUTATIONS)) == 5


def test_a_failure_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer that cannot fail proves nothing."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Deriver, "observe", broken)
    with pytest.raises(ZeroDivisionError):
        fuzz_slots.fuzz(50, 1)


def test_no_request_breaks_the_exporter(attach: Attach, board: Board) -> None:
    busy(attach)
    with exporter_process({"WS_GUARD_BOARD": board.path}) as (process, url):
        seed = a_seed()
        tally = abuse(url, openapi(url), 300, seed)
        assert sum(tally.values()) == 300
        assert {200, 400, 404, 405} <= set(tally), f"seed {seed}"
        assert httpx.get(f"{url}/livez").status_code == 200
        process.terminate()
        _, told = process.communicate(timeout=20)
    # Of the workers it tells; of the requests it has nothing to say.
    assert process.returncode == 0
    assert [line for line in told.splitlines() if not line.startswith('{"event": "over')] == []
