"""The whole board at one moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ws_guard.board import Board, SlotError, SlotReader, list_slots

from .derive import Deriver, Observed
from .roster import Roster, call_roster

#: How long the lasting series of a dead worker stay, in seconds.
KEEP_DEAD_SECONDS = 900.0

_NOBODY = Roster((), (), 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A board as it was read.

    `fault` says why it cannot be read now ("" where it can): then the workers are those of the
    last good read. `slots` are all that told who they are, superseded ones included; `forgotten`
    names those that are dead for so long that their last series have left.
    """

    state: Literal["unread", "absent", "read"] = "unread"
    fault: str = ""
    slots: tuple[Observed, ...] = ()
    roster: Roster = _NOBODY
    forgotten: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()
    read_errors: int = 0
    read_seconds: float = 0.0


class BoardWatch:
    """Reads a board again and again, from one thread. It never writes to it."""

    def __init__(self, board: Board, clock: Callable[[], float] = time.monotonic) -> None:
        self._board = board
        self._clock = clock
        self._slots: dict[tuple[str, int], tuple[SlotReader, Deriver]] = {}
        self._reported: set[tuple[str, int, str]] = set()
        self._dead_since: dict[str, float] = {}
        self._read_errors = 0
        self._last = Snapshot()

    @property
    def path(self) -> str:
        """The directory that is watched."""
        return self._board.path

    def read(self) -> Snapshot:
        """The board now; after a failure the last good read with its `fault`."""
        started = self._clock()
        try:
            found = self._read(started)
        except FileNotFoundError:
            self._slots.clear()
            found = Snapshot(state="absent")
        except OSError as error:
            self._read_errors += 1
            found = replace(self._last, fault=self._reason(error))
        self._last = replace(
            found, read_errors=self._read_errors, read_seconds=self._clock() - started
        )
        return self._last

    def _read(self, now: float) -> Snapshot:
        self._board.check()
        directory = os.open(self._board.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            slots, bad = self._read_slots(directory)
        finally:
            os.close(directory)
        self._count(bad)
        return Snapshot(
            state="read",
            slots=tuple(slots),
            roster=call_roster(slots),
            forgotten=self._forgotten(slots, now),
            unreadable=tuple(reason for _, _, reason in bad),
        )

    def _read_slots(self, directory: int) -> tuple[list[Observed], list[tuple[str, int, str]]]:
        names, foreign = list_slots(directory)
        bad = [(name, _inode(directory, name), "it is no slot by its name") for name in foreign]
        known, self._slots = self._slots, {}
        slots = []
        for name in names:
            # A file put in the place of another is another slot, whatever its name.
            key = (name, _inode(directory, name))
            reader, deriver = known.get(key) or (SlotReader(name), Deriver())
            self._slots[key] = reader, deriver
            try:
                view = reader.read(self._board, directory)
            except FileNotFoundError:
                continue  # its worker left between listing and opening
            except (SlotError, OSError) as error:
                bad.append((*key, self._reason(error)))
                continue
            # A worker that has not said who it is has not attached yet; a closed one has left.
            if view.document and not view.closed:
                slots.append(deriver.observe(view))
        return slots, bad

    def _count(self, bad: list[tuple[str, int, str]]) -> None:
        """A bad file counts once for each reason, however often it is met."""
        self._read_errors += len(set(bad) - self._reported)
        self._reported = set(bad)

    def _forgotten(self, slots: list[Observed], now: float) -> frozenset[str]:
        dead = [one.slot for one in slots if not one.worker.alive]
        self._dead_since = {name: self._dead_since.get(name, now) for name in dead}
        return frozenset(
            name for name, since in self._dead_since.items() if now - since > KEEP_DEAD_SECONDS
        )

    def _reason(self, error: SlotError | OSError) -> str:
        """Why, without the path: it goes into answers that anybody on the network may read."""
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return str(error).replace(f"board {self._board.path}", "the board")


def _inode(directory: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino
    except OSError:
        return 0
