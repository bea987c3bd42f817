"""A worker's end of its slot: rows, counters, ring and document.

Counting is inline in the probe (`words[row + COUNT_EAGER] += 1`): no Python call stands between
load and store, so that under the GIL threads lose nothing. The rest here is off the hot path.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import threading
import time
import zlib
from collections.abc import Mapping
from typing import Any

from . import liveness
from .directory import HIDDEN, SUFFIX, Board, BoardError
from .ends import ends_of_runs
from .format import (
    ACTIONS,
    DOCUMENT_BYTES,
    DOCUMENT_OFFSET,
    EXACT_ROWS,
    FOLD_ROWS,
    LANES,
    MAGIC,
    MAX_OPS,
    MAX_WORKSPACES,
    OVERFLOW,
    OVERRUN,
    RING_OFFSET,
    RING_RUNS,
    ROW_BYTES,
    ROW_WORDS,
    ROWS_OFFSET,
    SHAPE_BYTES,
    SLOT_BYTES,
    VERSION,
    Header,
    Outcome,
    Shape,
    event_word,
    fold_class,
    pack_run,
    pack_shape,
    seal,
    unpack_run,
    unpack_shape,
)

RING_WORD = RING_OFFSET // 8
OBSERVED, RAISED = ACTIONS.index("observed"), ACTIONS.index("raised")
#: An engine that gives up over an error has ended by then.
DYING_SECONDS = 60
_serial = itertools.count()


class Slot:
    """One worker's slot, on the board or, where that cannot be, in memory alone.

    `words` is the whole slot as 64-bit words. `problem` says why the slot is not on the board.
    """

    def __init__(self, memory: mmap.mmap, fd: int | None, path: str | None, problem: str) -> None:
        self._memory = memory
        self._address = 0
        self._bytes = memoryview(memory)
        self._fd = fd
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._folds: dict[tuple[int, int, int], int] = {}
        self._worst: dict[int, int] = {}
        self._raised_at = 0.0
        self.words = self._bytes.cast("Q")
        self._clocks = self._bytes.cast("d")
        #: By lane: when its last call was, in seconds of `time.monotonic`.
        self.last_call = self._clocks[Header.LAST_CALL : Header.LAST_CALL + LANES]
        #: By lane: the ring word of its current run.
        self.last_run = self.words[Header.LAST_RUN : Header.LAST_RUN + LANES]
        self.ring = self.words[RING_WORD : RING_WORD + RING_RUNS]
        #: The next place in the ring. It is one call in C: no two threads get the same place.
        self.next_place = itertools.cycle(range(RING_RUNS)).__next__
        self.path = path
        self.problem = problem
        # Side by side: a time of the one clock is told as one of the other.
        self.attached_ns, self._attached_clock = time.time_ns(), time.monotonic()
        self._write_header()

    @classmethod
    def on_board(cls, board: Board) -> Slot:
        """A slot on the board; in memory with a `problem` if the board cannot hold one."""
        try:
            board.prepare()
            return cls._create(board)
        except (OSError, ValueError) as error:  # ValueError: a path that can be none
            reason = str(error) if isinstance(error, BoardError) else f"board {board.path}: {error}"
            return cls.in_memory(reason)

    @classmethod
    def in_memory(cls, problem: str) -> Slot:
        """A slot that nobody else can read: the worker runs on, unobserved."""
        return cls(mmap.mmap(-1, SLOT_BYTES), None, None, problem)

    @classmethod
    def _create(cls, board: Board) -> Slot:
        name = f"{os.getpid()}.{time.time_ns():x}.{next(_serial)}{SUFFIX}"
        path, hidden = os.path.join(board.path, name), os.path.join(board.path, HIDDEN + name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(hidden, flags, board.file_mode)
        try:
            liveness.hold_lock(fd)
            os.fchmod(fd, board.file_mode)
            if board.group is not None:
                os.fchown(fd, -1, board.group)
            # A store into a hole of a full tmpfs would be SIGBUS: reserve every byte now.
            os.posix_fallocate(fd, 0, SLOT_BYTES)
            slot = cls(mmap.mmap(fd, SLOT_BYTES), fd, path, "")
            os.rename(hidden, path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(hidden)
            raise
        return slot

    def _write_header(self) -> None:
        self.words[Header.VERSION] = VERSION
        self.words[Header.SLOT_BYTES] = SLOT_BYTES
        self.words[Header.PID] = self._pid
        self.words[Header.PID_START_TICKS] = liveness.pid_start_ticks(self._pid)
        self.words[Header.PID_NAMESPACE] = liveness.pid_namespace()
        self.words[Header.ATTACHED_NS] = self.attached_ns
        self._clocks[Header.ATTACHED_CLOCK] = self._attached_clock
        self.words[Header.MAGIC] = MAGIC

    def address_of(self, word: int) -> int:
        """Where a word stands in memory, until the slot is dropped."""
        import ctypes  # with the extension alone, and torch has it loaded

        if not self._address:
            # In one go: a child that another thread forks amid this could never unmap the slot.
            lent = map(ctypes.c_char.from_buffer, (self._memory,))
            self._address = next(map(ctypes.addressof, lent))
        return self._address + 8 * word

    def describe(self, document: Mapping[str, Any]) -> None:
        """Publish what else is to be known of this worker. ValueError beyond 16 KiB of JSON."""
        text = json.dumps(document, separators=(",", ":")).encode()
        if len(text) > DOCUMENT_BYTES - 16:
            raise ValueError(f"the document has {len(text)} bytes, {DOCUMENT_BYTES - 16} fit")
        with self._lock:
            generation = self.words[Header.DOCUMENT] + 1
            start = DOCUMENT_OFFSET + (generation & 1) * DOCUMENT_BYTES
            self.words[start // 8] = len(text)
            self.words[start // 8 + 1] = zlib.crc32(text)
            self._bytes[start + 16 : start + 16 + len(text)] = text
            self.words[Header.DOCUMENT] = generation

    def add_row(self, shape: Shape, need_bytes: int) -> tuple[int, int, bool]:
        """A row for a shape not seen before: (row number, its first word, whether it is folded).

        `need_bytes` decides whose shape a folded row shows: the worst.
        """
        with self._lock:
            used = self.words[Header.EXACT_ROWS]
            if used < EXACT_ROWS:
                self._write_shape(used, shape)
                self.words[Header.EXACT_ROWS] = used + 1
                return used, _row_word(used), False
            row = self._fold(shape, need_bytes)
            return row, _row_word(row), True

    def _fold(self, shape: Shape, need_bytes: int) -> int:
        key = (shape.op, min(shape.workspace, MAX_WORKSPACES), fold_class(shape.batch))
        row = self._folds.get(key)
        if row is None:
            used = self.words[Header.FOLD_ROWS]
            # (8 ops, 9 workspaces, 32 powers) would be more rows than are reserved; no process
            # comes near it, and if one did, the last row would take the rest.
            row = self._folds[key] = EXACT_ROWS + min(used, FOLD_ROWS - 1)
            self.words[Header.FOLD_ROWS] = min(used + 1, FOLD_ROWS)
        if need_bytes > self._worst.get(row, -1):
            self._write_shape(row, shape)
            self._worst[row] = need_bytes
        return row

    def _write_shape(self, row: int, shape: Shape) -> None:
        data = pack_shape(shape)
        start = ROWS_OFFSET + row * ROW_BYTES
        # In one go: of a worker that is killed in between, a row would say nothing.
        self._bytes[start : start + 8 + SHAPE_BYTES] = seal(data).to_bytes(8, "little") + data

    def begin_run(self, lane: int, row: int, outcome: Outcome) -> None:
        """From now on the calls of a lane are of another row or outcome; the first is made now."""
        word = pack_run(time.monotonic_ns(), row, outcome)
        self.ring[self.next_place()] = self.last_run[lane] = word
        self.last_call[lane] = time.monotonic()

    def calls_since(self, clock: float) -> list[tuple[Shape, Outcome]]:
        """Shapes and outcomes of the runs that may have had a call since a moment of the monotonic
        clock, by their ends."""
        lanes = zip(self.last_run, self.last_call, strict=True)
        current = {run: called for run, called in lanes if run}
        ends = ends_of_runs(self.ring, current, lambda row: self._shape(row).op)
        calls = []
        for run in sorted(ends, key=lambda run: (ends[run], run)):
            if ends[run] >= clock:
                _, row, outcome = unpack_run(run)
                calls.append((self._shape(row), Outcome(outcome)))
        return calls

    def _shape(self, row: int) -> Shape:
        start = ROWS_OFFSET + row * ROW_BYTES + 8
        return unpack_shape(bytes(self._bytes[start : start + SHAPE_BYTES]))

    def add_event(self, op: int, kind: int, action: int, count: int = 1) -> None:
        """Count an overflow or overrun (`count` -1 takes one back) and stamp its time."""
        with self._lock:
            word = event_word(op, kind, action)
            # What is taken back may stand in another slot: that from before a fork or a close.
            self.words[word] = max(0, self.words[word] + count)
            if action == RAISED:
                self._raised_at = time.monotonic()
            if count > 0:
                last = Header.LAST_OVERFLOW_NS if kind == OVERFLOW else Header.LAST_OVERRUN_NS
                self.words[last] = time.time_ns()

    def add_probe_error(self) -> None:
        """Count an exception inside the probe."""
        with self._lock:
            self.words[Header.PROBE_ERRORS] += 1

    def is_removed(self) -> bool:
        """Whether somebody has taken the slot off the board under its worker."""
        try:
            return self._fd is not None and os.fstat(self._fd).st_nlink == 0
        except OSError:
            return False

    def saw_trouble(self) -> bool:
        """Whether a worker that exits now may have died of an overflow or overrun.

        One that was observed is evidence for good. A worker outlives one that was raised unless its
        engine gave up over it, which does not take longer than `DYING_SECONDS`; a call that was
        split went well.
        """
        observed = any(
            self.words[event_word(op, kind, OBSERVED)]
            for op in range(MAX_OPS)
            for kind in (OVERFLOW, OVERRUN)
        )
        dying = self._raised_at and time.monotonic() - self._raised_at <= DYING_SECONDS
        return observed or bool(dying)

    def close(self) -> None:
        """Leave the board cleanly: the slot is marked closed and removed.

        A child that was forked behind Python's back has the slot of its parent, and leaves it be.
        """
        if self.path is not None and self._pid == os.getpid():
            self.words[Header.CLOSED_NS] = time.time_ns()
            # Already removed, or the directory is: then nothing is left to tidy.
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self.drop()

    def drop(self) -> None:
        """Let go of the file without a mark: what a forked child does, and the end of `close`."""
        views = self.last_call, self.last_run, self.ring, self._clocks, self.words, self._bytes
        for view in views:
            view.release()
        self._memory.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = self.path = None


def _row_word(row: int) -> int:
    return ROWS_OFFSET // 8 + row * ROW_WORDS
