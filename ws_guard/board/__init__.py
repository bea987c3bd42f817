"""The board: one slot file per worker; workers write, readers never do. Standard library only."""

from .directory import Board, BoardError, open_board
from .format import ACTIONS, MAX_WORKSPACES, OVERFLOW, OVERRUN, Outcome, Shape
from .reader import OTHER_FORMAT, LastCall, Row, SlotError, SlotReader, SlotView, list_slots
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
