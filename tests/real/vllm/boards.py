"""What stands on a board, for programs that run without pytest."""

from __future__ import annotations

import os
from typing import Any

from ws_guard.board import Board, SlotReader, list_slots
from ws_guard.exporter.checks import examine
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.settings import read_settings


def documents(path: str) -> list[dict[str, Any]]:
    """The document of every live slot, in the order of ranks; empty without a board."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        views = [SlotReader(name).read(Board(path), fd) for name in list_slots(fd)[0]]
    finally:
        os.close(fd)
    return sorted((view.document for view in views if view.alive), key=lambda told: told["rank"])


def health(path: str) -> dict[str, str]:
    """State and detail of the checks that a plan decides, as the exporter tells them."""
    told = examine(BoardWatch(Board(path)).read(), read_settings()[0])
    checks = {check.name: f"{check.state} {check.detail}".strip() for check in told.checks}
    return {name: checks[name] for name in ("planned_fits", "contract_known", "workers_reporting")}
