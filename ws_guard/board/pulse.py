"""A cheap look at a slot, to tell whether it must be read again.

A worker writes into the header with every call, replay, event and document. While header and file
are as they were and the worker lives, rows, ring and document are as they were too.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from . import liveness
from .format import HEADER_BYTES, Header

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PID = struct.Struct(f"<{8 * Header.PID}xQQQ")


class Pulse(NamedTuple):
    """What a look saw: the file's inode, owner and further marks, and its header."""

    inode: int
    owner: int
    file: tuple[int, int, int, int]
    header: bytes


def feel(name: str, directory_fd: int, own_namespace: int) -> Pulse | None:
    """The pulse of a slot; None where it has to be read to know more: its worker died, above all.

    `own_namespace` is `liveness.pid_namespace()`. Nothing here is a judgement of the file: compare
    the answer with that from before the last read.
    """
    try:
        fd = os.open(name, _FLAGS, dir_fd=directory_fd)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        header = os.pread(fd, HEADER_BYTES, 0)
        if len(header) != HEADER_BYTES:
            return None
        pid, start_ticks, namespace = _PID.unpack_from(header)
        visible = start_ticks and namespace and namespace == own_namespace
        if not liveness.is_locked(fd) or (visible and not liveness.exists(pid)):
            return None
    except OSError:
        return None
    finally:
        os.close(fd)
    marks = found.st_mode, found.st_nlink, found.st_gid, found.st_size
    return Pulse(found.st_ino, found.st_uid, marks, header)
