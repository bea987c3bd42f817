"""The whole board at one moment."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from ws_guard.board import Board, SlotError, SlotReader, list_slots

from .derive import Deriver, Observed
from .lives import Lives
from .roster import Roster, call_roster

_Bad: TypeAlias = tuple[str, int, str]

_NOBODY = Roster((), (), 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A board as it was read.

    `fault` says why it cannot be read now ("" where it can): then the workers are those of the
    last good read. `slots` are all that told who they are, superseded ones included; `forgotten`
    names those that are dead for so long that their last series have left. `unreadable` are the
    reasons why files were passed over; `refused` are those of slots that the system does not let
    us read: of their workers nothing is known.
    """

    state: Literal["unread", "absent", "read"] = "unread"
    fault: str = ""
    slots: tuple[Observed, ...] = ()
    roster: Roster = _NOBODY
    forgotten: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    read_errors: int = 0
    read_seconds: float = 0.0


class _Found(NamedTuple):
    """What lies on a board: slots, files passed over, reasons of refusals, and file times."""

    slots: list[Observed]
    bad: list[_Bad]
    refused: list[str]
    changed: dict[str, float]


class BoardWatch:
    """Reads a board again and again, from one thread. It never writes to it."""

    def __init__(
        self,
        board: Board,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._board = board
        self._clock = clock
        self._lives = Lives(wall)
        self._slots: dict[tuple[str, int], tuple[SlotReader, Deriver]] = {}
        self._reported: set[tuple[str, int, str]] = set()
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
            found = self._read_slots(directory)
        finally:
            os.close(directory)
        self._count(found.bad)
        return Snapshot(
            state="read",
            slots=tuple(found.slots),
            roster=call_roster(found.slots),
            forgotten=self._lives.forgotten(found.slots, found.changed, now),
            unreadable=tuple(reason for _, _, reason in found.bad),
            refused=tuple(found.refused),
        )

    def _read_slots(self, directory: int) -> _Found:
        names, foreign = list_slots(directory)
        found = _Found([], [], [], {})
        for name in foreign:
            found.bad.append((name, _inode(_look(directory, name)), "it is no slot by its name"))
        known, self._slots = self._slots, {}
        for name in names:
            file = _look(directory, name)
            # A file put in the place of another is another slot, whatever its name.
            key = (name, _inode(file))
            reader, deriver = known.get(key) or (SlotReader(name), Deriver())
            self._slots[key] = reader, deriver
            try:
                view = reader.read(self._board, directory)
            except FileNotFoundError:
                continue  # its worker left between listing and opening
            except (SlotError, OSError) as error:
                found.bad.append((*key, self._reason(error)))
                if self._is_refused(error, file):
                    found.refused.append(self._reason(error))
                continue
            # A worker that has not said who it is has not attached yet; a closed one has left.
            if view.document and not view.closed:
                found.slots.append(deriver.observe(view))
                found.changed[name] = file.st_mtime if file else 0.0
        return found

    def _is_refused(self, error: Exception, file: os.stat_result | None) -> bool:
        """Whether an error hides a worker; on a shared board a stranger's file hides none."""
        if not isinstance(error, OSError) or error.errno not in (errno.EACCES, errno.EIO):
            return False
        if file is None:
            return True
        return stat.S_ISREG(file.st_mode) and self._board.trusts(file.st_uid)

    def _count(self, bad: list[_Bad]) -> None:
        """A bad file counts once for each reason, however often it is met."""
        self._read_errors += len(set(bad) - self._reported)
        self._reported = set(bad)

    def _reason(self, error: SlotError | OSError) -> str:
        """Why, without the path: it goes into answers that anybody on the network may read."""
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return str(error).replace(f"board {self._board.path}", "the board")


def _look(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None


def _inode(file: os.stat_result | None) -> int:
    return 0 if file is None else file.st_ino
