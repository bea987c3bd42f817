"""The board: one slot file per worker; workers write, readers never do. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .directory import Board, BoardError, open_board
from .format import ACTIONS, MAX_WORKSPACES, OVERFLOW, OVERRUN, Outcome, Shape

if TYPE_CHECKING:
    from .opening import in_time, open_slot
    from .reader import OTHER_FORMAT, Row, SlotError, SlotReader, SlotView, list_slots
    from .ring import LastCall, LastCalls
    from .tidy import remove_dead
    from .writer import Slot

__all__ = [
    "ACTIONS",
    "MAX_WORKSPACES",
    "OTHER_FORMAT",
    "OVERFLOW",
    "OVERRUN",
    "Board",
    "BoardError",
    "LastCall",
    "LastCalls",
    "Outcome",
    "Row",
    "Shape",
    "Slot",
    "SlotError",
    "SlotReader",
    "SlotView",
    "in_time",
    "list_slots",
    "open_board",
    "open_slot",
    "remove_dead",
]

_HOMES = {
    "LastCall": "ring",
    "LastCalls": "ring",
    "Slot": "writer",
    "in_time": "opening",
    "open_slot": "opening",
    "remove_dead": "tidy",
}


def __getattr__(name: str) -> object:
    # Both ends are loaded when asked for: what imports the probe may never come to it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = _HOMES.get(name, "reader")
    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value
