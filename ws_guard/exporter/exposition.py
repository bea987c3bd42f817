"""The metrics as a scraper gets them: written once for each read of the board, whoever asks."""

from __future__ import annotations

import threading
from typing import NamedTuple

from ws_guard.settings import Settings

from .collector import board_registry
from .negotiation import encoder
from .snapshot import Snapshot

#: Prometheus and one or two others have formats of their own; nobody is to fill the memory by more.
_MOST_KEPT = 4


class Exposition(NamedTuple):
    """The text of a scrape and its Content-Type."""

    text: bytes
    content_type: str


class Press:
    """Writes expositions, one at a time: a large board takes tens of milliseconds of processor.

    Were many written at once, in threads, the one that answers /livez would get its turn after all
    of them, again and again.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._kept: dict[str, bytes] = {}

    def exposition(self, snapshot: Snapshot, accept: str) -> Exposition:
        """All metrics of a snapshot, in the format that an Accept header asks for."""
        encode, content_type = encoder(accept)
        with self._turn:
            if snapshot is not self._snapshot or len(self._kept) >= _MOST_KEPT:
                self._snapshot, self._kept = snapshot, {}
            text = self._kept.get(content_type)
            if text is None:
                registry = board_registry(lambda: snapshot, self._settings)
                text = self._kept[content_type] = encode(registry)
        return Exposition(text, content_type)
