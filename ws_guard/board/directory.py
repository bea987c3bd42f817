"""The board: a directory of slot files, private to a user or shared with a group."""

from __future__ import annotations

import contextlib
import grp
import os
import stat
from typing import NamedTuple

SUFFIX = ".slot"
#: A slot in the making has this prefix; readers pass over it.
HIDDEN = "."
#: How slots are opened to be read: in the place of one there may be anything.
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BoardError(OSError):
    """The board cannot be used; the text says why and what to do."""


class Board(NamedTuple):
    """A board directory. `group` is the gid it is shared with, None for a private board."""

    path: str
    group: int | None = None
    trusted_uids: tuple[int, ...] = ()

    @property
    def file_mode(self) -> int:
        """Permission bits of a slot."""
        return 0o600 if self.group is None else 0o640

    def prepare(self) -> None:
        """Make a missing private directory, and check that the board may be used: for workers.

        A shared directory is taken as found: who made it chose its group and mode.
        """
        try:
            if self.group is None:
                with contextlib.suppress(FileExistsError):
                    os.makedirs(self.path, mode=0o700)
            self.check()
        except BoardError:
            raise
        except OSError as error:
            raise BoardError(f"board {self.path}: {error.strerror}; set WS_GUARD_BOARD") from None

    def check(self) -> None:
        """`BoardError` if slots here cannot be trusted, OSError if the directory cannot be seen."""
        found = os.stat(self.path)
        if not stat.S_ISDIR(found.st_mode):
            raise BoardError(f"board {self.path} is not a directory; set WS_GUARD_BOARD")
        if self.group is None:
            # Of a symbolic link both ends count: in /dev/shm anybody can plant one.
            self._check_owner(found.st_uid)
            self._check_owner(os.lstat(self.path).st_uid)
        if self.group is not None and found.st_gid != self.group:
            raise BoardError(
                f"board {self.path} has group {found.st_gid}, WS_GUARD_BOARD_GROUP is {self.group}"
            )

    def open(self) -> int:
        """A descriptor of the directory, by which its slots are opened and listed."""
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_there(self) -> bool:
        """Whether there is a board, one that can be read; `BoardError` where that cannot be."""
        try:
            self.check()
            os.close(self.open())
        except FileNotFoundError:
            return False
        except BoardError:
            raise
        except OSError as error:
            raise BoardError(f"board {self.path}: {error.strerror}; set WS_GUARD_BOARD") from None
        return True

    def _check_owner(self, uid: int) -> None:
        if uid != os.geteuid():
            raise BoardError(
                f"board {self.path} belongs to uid {uid}, not to {os.geteuid()}; "
                "set WS_GUARD_BOARD_GROUP to share it, or WS_GUARD_BOARD to another directory"
            )

    def trusts(self, uid: int) -> bool:
        """Whether a slot of this owner is read."""
        if uid == os.geteuid() or uid in self.trusted_uids:
            return True
        return self.group is not None and uid == os.stat(self.path).st_uid


def open_board(path: str, group: str | None = None, trusted_uids: tuple[int, ...] = ()) -> Board:
    """A board by its settings; `group` is a name or a number. Raises `BoardError`."""
    if group is None:
        return Board(path, None, trusted_uids)
    if group.isascii() and group.isdigit() and len(group) <= 10:
        return Board(path, int(group), trusted_uids)
    try:
        return Board(path, grp.getgrnam(group).gr_gid, trusted_uids)
    except KeyError:
        raise BoardError(f"WS_GUARD_BOARD_GROUP={group!r}: there is no such group") from None
