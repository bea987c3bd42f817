"""A probe on a board for a while, and what its slots say; runs without pytest too."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from ws_guard.board import Board, SlotReader, SlotView, list_slots
from ws_guard.probe import Probe, install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def probed(path: str, action: str | None = None) -> Iterator[Probe]:
    """The probe installed for a while."""
    probe = install(board=path, on_overflow=action)
    try:
        yield probe
    finally:
        probe.uninstall()


def slots(path: str) -> list[SlotView]:
    """Every slot of a board."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return [SlotReader(name).read(Board(path), fd) for name in list_slots(fd)[0]]
    finally:
        os.close(fd)


def calls_by_mode(slot: SlotView) -> dict[str, int]:
    """How many calls of each mode a slot counts."""
    modes = ("eager", "captured", "replayed", "tuning")
    return {mode: sum(getattr(row, mode) for row in slot.rows) for mode in modes}


def events(path: str) -> list[Any]:
    """[op, kind, action, count] of every event."""
    (slot,) = slots(path)
    ops = slot.document["ops"]
    return [[ops[op], kind, action, n] for (op, kind, action), n in slot.events.items()]


def error_of(call: Callable[[], Any]) -> Exception:
    """What a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return error
    raise AssertionError(f"{call} was not refused")
