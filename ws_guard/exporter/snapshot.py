"""The whole board at one moment."""

from __future__ import annotations

import errno
import operator
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ws_guard.board import Board, SlotError, SlotReader, list_slots
from ws_guard.board.liveness import pid_namespace
from ws_guard.board.pulse import Pulse

from .derive import Deriver, Observed
from .lives import Lives
from .roster import Roster, call_roster

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


class _BadFile(NamedTuple):
    """A file that is passed over, and why."""

    name: str
    inode: int
    reason: str


class _Found(NamedTuple):
    """What lies on a board: slots, files passed over, reasons of refusals, and file times."""

    slots: list[Observed]
    bad: list[_BadFile]
    refused: list[str]
    changed: dict[str, float]


class _FollowedSlot:
    """One slot as it is followed: its reader, and what the last read gave."""

    __slots__ = ("_alive", "_deriver", "_pulse", "_reader", "_settled", "inode", "observed")

    def __init__(self, name: str, inode: int) -> None:
        self.inode = inode
        self.observed: Observed | None = None
        self._reader = SlotReader(name)
        self._deriver = Deriver()
        self._pulse = Pulse(name)
        self._alive = False
        self._settled = False

    def is_as_read(self, directory: int) -> bool:
        """Whether the last read still holds.

        What was read after a change is read once more: of a call in the middle of being counted the
        header may have shown first.
        """
        return self._settled and self._pulse.is_steady(directory, alive=self._alive)

    def read(self, board: Board, directory: int, own_namespace: int) -> None:
        """Read it. Errors are those of `SlotReader.read`."""
        self.observed, self._settled = None, False
        unchanged = self._pulse.take(directory, own_namespace)
        view = self._reader.read(board, directory)
        # A worker that has not said who it is has not attached yet; a closed one has left.
        if view.document and not view.closed:
            self.observed = self._deriver.observe(view)
        self._alive, self._settled = view.alive, unchanged


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
        self._slots: dict[str, _FollowedSlot] = {}
        self._directory: tuple[int, ...] = ()
        self._namespace = pid_namespace()
        self._reported: set[_BadFile] = set()
        self._read_errors = 0
        self._last = Snapshot()

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
        directory = self._board.open()
        try:
            same = self._is_same(directory)
            names, foreign = list_slots(directory)
            if same and not foreign and self._is_calm(names, directory):
                return self._grown_old(now)
            found = self._read_slots(directory, names, foreign, same=same)
        finally:
            os.close(directory)
        self._count(found.bad)
        return Snapshot(
            state="read",
            slots=tuple(found.slots),
            roster=self._call_roster(found.slots),
            forgotten=self._lives.forgotten(found.slots, found.changed, now),
            unreadable=tuple(file.reason for file in found.bad),
            refused=tuple(found.refused),
        )

    def _grown_old(self, now: float) -> Snapshot:
        """The last read, which still holds, but that the dead have grown older."""
        forgotten = self._lives.forgotten(self._last.slots, {}, now)
        if forgotten == self._last.forgotten:
            return self._last
        return replace(self._last, forgotten=forgotten)

    def _is_calm(self, names: list[str], directory: int) -> bool:
        """Whether the last read still holds, all of it: as a board of an idle engine is."""
        last = self._last
        if last.state != "read" or last.fault or self._reported or names != [*self._slots]:
            return False
        return all(slot.is_as_read(directory) for slot in self._slots.values())

    def _read_slots(
        self, directory: int, names: list[str], foreign: list[str], *, same: bool
    ) -> _Found:
        found = _Found([], [], [], {})
        for name in foreign:
            inode = _inode(_look(directory, name))
            found.bad.append(_BadFile(name, inode, "no slot by its name"))
        known, self._slots = self._slots, {}
        for name in names:
            slot = known.get(name)
            if slot is None or not (same and slot.is_as_read(directory)):
                slot = self._read_slot(name, directory, slot, found)
            if slot is not None:
                self._slots[name] = slot
                if slot.observed is not None:
                    found.slots.append(slot.observed)
        return found

    def _is_same(self, directory: int) -> bool:
        """Whether it is the directory of the last read, and of the same owner and mode."""
        last, self._directory = self._directory, _owned(os.fstat(directory))
        return self._directory == last

    def _read_slot(
        self, name: str, directory: int, slot: _FollowedSlot | None, found: _Found
    ) -> _FollowedSlot | None:
        """Read a slot; None where its worker has left. `found` has what else is in the way."""
        file = _look(directory, name)
        # A file put in the place of another is another slot, whatever its name.
        if slot is None or slot.inode != _inode(file):
            slot = _FollowedSlot(name, _inode(file))
        try:
            slot.read(self._board, directory, self._namespace)
            found.changed[name] = file.st_mtime if file else 0.0
        except FileNotFoundError:
            return None  # between listing and opening
        except (SlotError, OSError) as error:
            found.bad.append(_BadFile(name, slot.inode, self._reason(error)))
            if self._is_refused(error, file):
                found.refused.append(self._reason(error))
        return slot

    def _call_roster(self, slots: list[Observed]) -> Roster:
        """The roster; that of the last read where nothing has changed since."""
        last = self._last.slots
        if len(slots) == len(last) and all(map(operator.is_, slots, last)):
            return self._last.roster
        return call_roster(slots)

    def _is_refused(self, error: Exception, file: os.stat_result | None) -> bool:
        """Whether an error hides a worker; on a shared board a stranger's file hides none."""
        if not isinstance(error, OSError) or error.errno not in (errno.EACCES, errno.EIO):
            return False
        if file is None:
            return True
        return stat.S_ISREG(file.st_mode) and self._board.trusts(file.st_uid)

    def _count(self, bad: list[_BadFile]) -> None:
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


def _owned(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_gid


def _inode(file: os.stat_result | None) -> int:
    return 0 if file is None else file.st_ino
