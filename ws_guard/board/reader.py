"""The reading end: slots are taken in with `pread` and never trusted.

Never mapped: a slot truncated under a mapping would kill the reader with SIGBUS.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

from . import liveness
from .directory import HIDDEN, READING, SUFFIX, Board
from .format import (
    ACTIONS,
    COUNT_EAGER,
    DOCUMENT_BYTES,
    DOCUMENT_OFFSET,
    EXACT_ROWS,
    FOLD_ROWS,
    HEADER_BYTES,
    LANES,
    MAGIC,
    MAX_BYTES,
    MAX_OPS,
    OVERFLOW,
    OVERRUN,
    RING_OFFSET,
    RING_RUNS,
    ROW_BYTES,
    ROW_WORDS,
    ROWS_OFFSET,
    SHAPE_BYTES,
    SLOT_BYTES,
    SUM_REPLAYED,
    VERSION,
    Header,
    Shape,
    event_word,
    seal,
    unpack_shape,
)
from .ring import LastCalls, oldest_first, put_forward

#: How the reason begins where a slot is of another version of the format.
OTHER_FORMAT = "it has format version"

_MAX_SECONDS = 1e10


class SlotError(Exception):
    """A file on the board that is no slot we can read; the text says why."""


class Row(NamedTuple):
    """A shape and how often it was called, by mode; batch sums count where `folded`."""

    shape: Shape
    folded: bool
    eager: int
    captured: int
    replayed: int
    tuning: int
    sum_eager: int
    sum_replayed: int


class SlotView(NamedTuple):
    """A slot as read at one moment. `events` counts by (op, overflow or overrun, action)."""

    name: str
    pid: int
    alive: bool
    closed: bool
    attached_ns: int
    document: dict[str, Any]
    rows: list[Row]
    events: dict[tuple[int, int, str], int]
    probe_errors: int
    last_overflow_ns: int
    last_overrun_ns: int
    calls: LastCalls


class SlotReader:
    """Reads one slot again and again; what never changes is parsed once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._identity = (0, 0)
        self._generation = 0
        self._document: dict[str, Any] = {}
        #: By row. Views hold on to the shapes: one that changes goes into another dictionary.
        self._shapes: dict[int, Shape] = {}
        self._seals: dict[int, int] = {}
        self._lent = False

    def read(self, board: Board, directory_fd: int) -> SlotView:
        """The slot now; `SlotError` for anything else, OSError where the system refuses."""
        fd = os.open(self._name, READING, dir_fd=directory_fd)
        try:
            found = os.fstat(fd)
            if not found.st_nlink:  # removed since it was opened
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._name)
            _check_file(found, board)
            return self._view(fd, found.st_ino)
        finally:
            os.close(fd)

    def _view(self, fd: int, inode: int) -> SlotView:
        header = _header(fd)
        pid, start = header[Header.PID], header[Header.PID_START_TICKS]
        alive = liveness.is_alive(fd, pid, start, header[Header.PID_NAMESPACE])
        if not alive:
            header = _header(fd)  # its last words may be younger: how it closed, above all
        attached = header[Header.ATTACHED_NS]
        if self._identity != (inode, attached):  # another slot has taken the name
            self._identity = (inode, attached)
            self._generation, self._document, self._shapes, self._seals = 0, {}, {}, {}
        self._read_document(fd, header[Header.DOCUMENT])
        rows = self._read_rows(fd, 0, min(header[Header.EXACT_ROWS], EXACT_ROWS))
        folds = min(header[Header.FOLD_ROWS], FOLD_ROWS)
        rows |= self._read_rows(fd, EXACT_ROWS, folds)
        return SlotView(
            name=self._name,
            pid=pid,
            alive=alive,
            closed=header[Header.CLOSED_NS] != 0,
            attached_ns=attached,
            document=self._document,
            rows=list(rows.values()),
            events=_events(header),
            probe_errors=header[Header.PROBE_ERRORS],
            last_overflow_ns=header[Header.LAST_OVERFLOW_NS],
            last_overrun_ns=header[Header.LAST_OVERRUN_NS],
            calls=self._last_calls(fd, header),
        )

    def _read_document(self, fd: int, generation: int) -> None:
        if generation in (0, self._generation):
            return
        data = _pread(fd, DOCUMENT_OFFSET + (generation & 1) * DOCUMENT_BYTES, DOCUMENT_BYTES)
        length = int.from_bytes(data[:8], "little")
        text = data[16 : 16 + length]
        if len(text) != length or zlib.crc32(text) != int.from_bytes(data[8:16], "little"):
            return  # being written: the copy read before still holds
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise SlotError("its document is not JSON") from None
        if not isinstance(document, dict):
            raise SlotError("its document is not an object")
        self._document, self._generation = document, generation

    def _read_rows(self, fd: int, first: int, count: int) -> dict[int, Row]:
        if not count:
            return {}
        data = _pread(fd, ROWS_OFFSET + first * ROW_BYTES, count * ROW_BYTES)
        words = memoryview(data).cast("Q")
        counts_begin, counts_end = COUNT_EAGER, SUM_REPLAYED + 1
        rows = {}
        for index in range(len(data) // ROW_BYTES):
            start = index * ROW_WORDS
            shape = self._shape(first + index, words[start], data, index * ROW_BYTES + 8)
            if shape is not None:
                counts = words[start + counts_begin : start + counts_end]
                rows[first + index] = Row(shape, first > 0, *counts)
        return rows

    def _shape(self, row: int, sealed: int, data: bytes, start: int) -> Shape | None:
        known = self._shapes.get(row)
        if known is not None and self._seals[row] == sealed:
            return known
        packed = data[start : start + SHAPE_BYTES]
        if seal(packed) != sealed:
            # Free, being written, or damaged: only a folded row was whole before.
            return known
        if known is not None and self._lent:
            self._shapes, self._lent = self._shapes.copy(), False
        shape = self._shapes[row] = _frugal(unpack_shape(packed))
        self._seals[row] = sealed
        return shape

    def _last_calls(self, fd: int, header: memoryview) -> LastCalls:
        runs = oldest_first(_words(fd, RING_OFFSET, 8 * RING_RUNS).tolist())
        clocks = header.cast("B").cast("d")
        for lane in range(LANES):
            if run := header[Header.LAST_RUN + lane]:
                lasts = put_forward(run, _nanoseconds(clocks[Header.LAST_CALL + lane]))
                # The ring may have gone round since the current run of a quiet lane began.
                if run in runs:
                    runs[runs.index(run)] = lasts
                else:
                    runs.append(lasts)
        origin = header[Header.ATTACHED_NS], _nanoseconds(clocks[Header.ATTACHED_CLOCK])
        self._lent = True
        return LastCalls(runs, self._shapes, origin)


@lru_cache(maxsize=256)
def _one_of(number: int) -> int:
    return number


def _frugal(shape: Shape) -> Shape:
    """The same shape, on numbers that it shares with the others of its kind: there are many."""
    size, qk, vo, top_k = map(_one_of, (shape.workspace_bytes, shape.qk, shape.vo, shape.top_k))
    return shape._replace(workspace_bytes=size, qk=qk, vo=vo, top_k=top_k)


def list_slots(directory_fd: int) -> tuple[list[str], list[str]]:
    """(slot names, names of foreign files) of a board."""
    names = sorted(name for name in os.listdir(directory_fd) if not name.startswith(HIDDEN))
    slots = [name for name in names if name.endswith(SUFFIX)]
    return slots, [name for name in names if not name.endswith(SUFFIX)]


def _check_file(found: os.stat_result, board: Board) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise SlotError("it is not a regular file")
    if found.st_nlink != 1:
        raise SlotError(f"it has {found.st_nlink} links")
    if not board.trusts(found.st_uid):
        raise SlotError(f"it belongs to uid {found.st_uid}, which is not trusted")
    if not HEADER_BYTES <= found.st_size <= MAX_BYTES:
        raise SlotError(f"it has {found.st_size} bytes, a slot has {SLOT_BYTES}")


def _header(fd: int) -> memoryview:
    header = _words(fd, 0, HEADER_BYTES)
    if header[Header.MAGIC] != MAGIC:
        raise SlotError("it is not a slot")
    if header[Header.VERSION] != VERSION:
        raise SlotError(_other_format(header[Header.VERSION]))
    if header[Header.SLOT_BYTES] != SLOT_BYTES:
        raise SlotError(f"its header speaks of {header[Header.SLOT_BYTES]} bytes")
    return header


def _other_format(version: int) -> str:
    age = "a newer" if version > VERSION else "an older"
    return f"{OTHER_FORMAT} {version}, known is {VERSION}: its worker has {age} ws-guard"


def _pread(fd: int, offset: int, length: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) != length:
        raise SlotError(f"it ends at byte {os.fstat(fd).st_size}")
    return data


def _words(fd: int, offset: int, length: int) -> memoryview:
    return memoryview(_pread(fd, offset, length)).cast("Q")


def _events(header: memoryview) -> dict[tuple[int, int, str], int]:
    return {
        (op, kind, name): count
        for op in range(MAX_OPS)
        for kind in (OVERFLOW, OVERRUN)
        for action, name in enumerate(ACTIONS)
        if (count := header[event_word(op, kind, action)])
    }


def _nanoseconds(seconds: float) -> int:
    """A clock's seconds; 0 for what no clock shows: a slot may hold anything."""
    return int(seconds * 1e9) if 0 <= seconds < _MAX_SECONDS else 0
