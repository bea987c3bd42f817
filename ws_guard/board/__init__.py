"""The board: one slot file per worker; workers write, readers never do. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .directory import Board, BoardError, open_board
from .format import ACTIONS, MAX_WORKSPACES, OVERFLOW, OVERRUN, Outcome, Shape
from .writer import Slot

if TYPE_CHECKING:
    from .reader import LastCall, Row, SlotError, SlotReader, SlotView, list_slots
    from .tidy import remove_dead

__all__ = [
    "ACTIONS",
    "MAX_WORKSPACES",
    "OVERFLOW",
    "OVERRUN",
    "Board",
    "BoardError",
    "LastCall",
    "Outcome",
    "Row",
    "Shape",
    "Slot",
    "SlotError",
    "SlotReader",
    "SlotView",
    "list_slots",
    "open_board",
    "remove_dead",
]


def __getattr__(name: str) -> object:
    # The reading end, loaded when asked for: what imports the probe may never need it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import reader, tidy

    value = tidy.remove_dead if name == "remove_dead" else getattr(reader, name)
    globals()[name] = value
    return value
