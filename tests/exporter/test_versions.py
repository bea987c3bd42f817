"""Workers and exporters of different releases: what is not understood is refused, and said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from slot_worker import SlotWorker

from ws_guard.board import Board, remove_dead
from ws_guard.board import reader as reader_module
from ws_guard.board.format import VERSION, Header

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    Attach: TypeAlias = Callable[..., SlotWorker]
    Get: TypeAlias = Callable[..., httpx.Response]

REMEDY = "; give exporter and workers the same ws-guard, and remove what is left"


def first_check(get: Get) -> dict[str, str]:
    check: dict[str, str] = get("/health").json()["checks"][0]
    return check


def error_count(get: Get) -> str:
    lines = get("/metrics").text.splitlines()
    (line,) = [one for one in lines if one.startswith("ws_guard_board_read_errors_total ")]
    return line.partition(" ")[2]


def test_a_newer_slot_is_told_and_counted_and_harms_no_other(attach: Attach, get: Get) -> None:
    attach(rank="0", planned=[])
    newer = attach(rank="1")
    newer.slot.words[Header.VERSION] = VERSION + 1
    health = get("/health")
    assert (health.status_code, [one["rank"] for one in health.json()["workers"]]) == (200, ["0"])
    told = "1 file on the board passed over: it has format version 2, known is 1: "
    told += "its worker has a newer ws-guard"
    assert first_check(get) == {"name": "board_readable", "state": "warn", "detail": told + REMEDY}
    assert get("/readyz?verbose").text.startswith(f"[+]board_readable warn: {told}")
    assert error_count(get) == "1.0"


def test_an_older_slot_before_a_newer_exporter(
    attach: Attach, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach()
    monkeypatch.setattr(reader_module, "VERSION", VERSION + 1)
    check = first_check(get)
    assert check["state"] == "warn"
    assert (
        "it has format version 1, known is 2: its worker has an older ws-guard" in check["detail"]
    )
    assert get("/readyz").text == "not ready: workers_reporting\n"
    assert error_count(get) == "1.0"


def test_what_is_no_slot_beside_it_is_told_after_it(attach: Attach, get: Get, board: Board) -> None:
    attach().slot.words[Header.VERSION] = 9
    Path(board.path, "a.slot").write_bytes(b"")
    detail = first_check(get)["detail"]
    assert detail.startswith("2 files on the board passed over: it has format version 9, known")
    assert "it has 0 bytes" in detail


def test_a_worker_that_starts_leaves_slots_of_other_formats_alone(
    attach: Attach, board: Board
) -> None:
    """Dead or not, and of whatever worker: its own release cannot tell."""
    old = attach(rank="0")
    old.slot.words[Header.VERSION] = 0
    old.die()
    attach(rank="0")
    assert remove_dead(board, "0", "0", None) == []
    assert Path(board.path, old.name).exists()
