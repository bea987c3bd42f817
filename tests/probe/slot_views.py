"""The slots of a board, and what they count."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

from ws_guard.board import Board, SlotReader, SlotView, list_slots

#: What the fixtures `slot` and `slots` give: the one slot of a board now, and every slot.
ReadSlot: TypeAlias = Callable[[], SlotView]
ReadSlots: TypeAlias = Callable[[], list[SlotView]]


def slots_of(board: str) -> list[SlotView]:
    """Every slot of a board now."""
    fd = os.open(board, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return [SlotReader(name).read(Board(board), fd) for name in list_slots(fd)[0]]
    finally:
        os.close(fd)


def eager(slot: SlotView) -> int:
    """Eager calls of a slot."""
    return sum(row.eager for row in slot.rows)


def eager_by_batch(slot: SlotView) -> dict[int, int]:
    """Eager calls of a slot whose shapes differ in their batch."""
    return {row.shape.batch: row.eager for row in slot.rows}


def destroyed_zones(slot: SlotView) -> list[dict[str, Any]]:
    """What a slot tells of guard zones that were written into."""
    return list(slot.document.get("destroyed_zones", []))
