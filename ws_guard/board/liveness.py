"""Whether the worker behind a slot still lives.

A worker holds an open-file-description write lock on its slot for life; the kernel frees it with
the last descriptor, however the worker dies. Readers only ask (`F_OFD_GETLK`), since a reader that
took a lock could make a starting worker fail. A child forked behind Python's back would keep the
description open, so pid and start time are compared as well where the pid can be seen.
"""

from __future__ import annotations

import fcntl
import os
import struct

#: More than a process's line in /proc ever has.
_STAT_BYTES = 4096

# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for OFD locks).
_FLOCK = struct.Struct("hhqqi4x")


def _whole_file(lock_type: int) -> bytes:
    return _FLOCK.pack(lock_type, os.SEEK_SET, 0, 0, 0)


_ASK = _whole_file(fcntl.F_RDLCK)
_FREE = struct.pack("h", fcntl.F_UNLCK)


def hold_lock(fd: int) -> None:
    """Take the worker's lock; OSError if another description holds it."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))


def is_locked(fd: int) -> bool:
    """Whether some worker holds its lock on the file behind a descriptor open for reading."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _ASK)
    return not answer.startswith(_FREE)


def pid_start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is no such process."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The command name may hold spaces and brackets: count fields behind the last one.
            return int(os.read(fd, _STAT_BYTES).rpartition(b")")[2].split()[19])
        finally:
            os.close(fd)
    except (OSError, IndexError, ValueError):
        return 0


def pid_namespace() -> int:
    """Identity of this process's pid namespace; 0 where it cannot be told."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def is_alive(fd: int, pid: int, start_ticks: int, namespace: int) -> bool:
    """Whether the worker that wrote (pid, start_ticks, namespace) into its slot still runs."""
    if not is_locked(fd):
        return False
    if not namespace or namespace != pid_namespace() or not start_ticks:
        return True
    return is_running(pid, start_ticks)


def is_running(pid: int, start_ticks: int) -> bool:
    """Whether the process that started at these ticks still runs, in our own pid namespace."""
    found = pid_start_ticks(pid)
    return found == start_ticks if found else exists(pid)


def exists(pid: int) -> bool:
    """Whether there is such a process, even where `hidepid` hides those of others in /proc."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
