"""A cheap look at a slot, to tell whether it must be read again.

A worker writes into the header with every call, replay, event and document. While header and file
are as they were and the worker lives, rows, ring and document are as they were too; once it is dead
nobody writes any more.
"""

from __future__ import annotations

import os
import struct
import time

from . import liveness
from .directory import READING
from .format import LANES, Header

#: What stands in the header, as far as it may change: all that is in use.
_USED_BYTES = 8 * (Header.LAST_CALL + LANES)
_PID = struct.Struct(f"<{8 * Header.PID}xQQQ")
#: Of a stat result: mode, inode, device, links, owner, group, size.
_MARKS = 7
#: Seconds after which it is looked at again which process has the pid.
_SAME_PROCESS_SECONDS = 3.0


class Pulse:
    """What a slot was like at the last `take`."""

    __slots__ = ("_file", "_header", "_locked", "_met_at", "_name", "_pid", "_start_ticks")

    def __init__(self, name: str) -> None:
        self._name = name
        self._file: tuple[float, ...] = ()
        self._header = b""
        self._locked = False
        self._pid = self._start_ticks = 0
        #: When the process of the pid was last seen to be the worker's.
        self._met_at = float("-inf")

    def take(self, directory_fd: int, own_namespace: int) -> bool:
        """Note what the slot is like; whether it was so at the `take` before.

        `own_namespace` is `liveness.pid_namespace()`. Call it before the slot is read.
        """
        before = self._file, self._header, self._locked
        self._file, self._header, self._pid, self._met_at = (), b"", 0, float("-inf")
        try:
            fd = os.open(self._name, READING, dir_fd=directory_fd)
        except OSError:
            return False  # whoever reads it will say why
        try:
            self._locked = liveness.is_locked(fd)
            file, header = os.fstat(fd)[:_MARKS], os.pread(fd, _USED_BYTES, 0)
        except OSError:
            return False
        finally:
            os.close(fd)
        if len(header) == _USED_BYTES:
            pid, start_ticks, namespace = _PID.unpack_from(header)
            seen = start_ticks and namespace and namespace == own_namespace
            self._file, self._header = file, header
            self._pid, self._start_ticks = pid if seen else 0, start_ticks
        return (self._file, self._header, self._locked) == before

    def is_steady(self, directory_fd: int, *, alive: bool) -> bool:
        """Whether the slot is as it was, and its worker as `alive` as it was."""
        try:
            fd = os.open(self._name, READING, dir_fd=directory_fd)
            try:
                return (
                    os.pread(fd, _USED_BYTES, 0) == self._header
                    and os.fstat(fd)[:_MARKS] == self._file
                    and liveness.is_locked(fd) is self._locked
                    and (not alive or not self._pid or self._is_same_process())
                )
            finally:
                os.close(fd)
        except OSError:
            return False

    def _is_same_process(self) -> bool:
        """Whether the worker's pid is still its own.

        Mostly only that somebody has it. Pids come round, though, and whoever asks may have been
        stopped meanwhile, for as long as it takes: /proc is read once the last reading is old.
        """
        now = time.monotonic()
        if now - self._met_at < _SAME_PROCESS_SECONDS:
            return liveness.exists(self._pid)
        if not liveness.is_running(self._pid, self._start_ticks):
            return False  # and will say so again
        self._met_at = now
        return True
