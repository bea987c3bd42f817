"""What a killed worker has left, beside its own account of what it did.

Slots are read here by their bytes, as `ws_guard/board/format.py` describes them, and not by the
reading end that is under test.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from mortal import (
    ACCOUNT_BYTES,
    BEGUN,
    MADE,
    PHASE,
    READY,
    REFUSED,
    RETURNED,
    SHAPES,
    SLOTS,
    TOTALS,
    heads_of,
    q_len_of,
)

if TYPE_CHECKING:
    from pathlib import Path

EXACT, FOLDS, ROWS_AT, ROW_BYTES = 14_464, 1_536, 45_056, 128
_SHAPE = struct.Struct("<BBBBHHIIIHHQQQQH6x")


class Account:
    """A life's own account, as it is now."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(ACCOUNT_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ACCOUNT_BYTES)
        self.words = memoryview(self._memory).cast("Q")
        self.path = path

    @property
    def phase(self) -> int:
        return self.words[PHASE]

    @property
    def ready(self) -> bool:
        return self.words[READY] != 0

    @property
    def slots(self) -> int:
        """Slots that were opened and closed again."""
        return self.words[SLOTS]

    def begun(self, slot: int) -> int:
        return self.words[TOTALS + 3 * slot + BEGUN]

    def made(self, slot: int) -> int:
        return self.words[TOTALS + 3 * slot + MADE]

    def returned(self, slot: int) -> int:
        return self.words[TOTALS + 3 * slot + RETURNED]

    def of_shape(self, batch: int) -> tuple[int, int]:
        """Calls made and begun of a shape."""
        return self.words[SHAPES + 2 * batch + MADE], self.words[SHAPES + 2 * batch + BEGUN]

    def close(self) -> None:
        self.words.release()
        self._memory.close()
        self.path.unlink()


class Found(NamedTuple):
    """A slot that was left: its number in the life, whether a reader must tell of a death, and
    folded rows whose shape was being replaced."""

    slot: int
    must_be_mourned: bool
    torn: int


def examine(board: Path, pid: int, account: Account) -> list[Found]:
    """Hold every slot of a life against its account; whatever is wrong is an AssertionError."""
    return [_examine(path, account) for path in sorted(board.glob(f"{pid}.*.slot"))]


def _examine(path: Path, account: Account) -> Found:
    data = path.read_bytes()
    words = memoryview(data).cast("Q")
    number = int(path.name.split(".")[2])
    assert data[:8] == b"WS_GUARD"
    assert len(data) == words[2] == ROWS_AT + (EXACT + FOLDS) * ROW_BYTES
    used, folds, generation = words[8], words[9], words[10]
    assert used <= EXACT
    assert folds <= FOLDS
    described = _check_document(data, generation)
    rows = [*range(used), *range(EXACT, EXACT + folds)]
    counted, torn = 0, 0
    for row in rows:
        # Its counts stand, but nobody can say of which shape: a reader that did not know it before
        # passes over it.
        torn += _is_torn(data, words, row, account)
        counted += words[(ROWS_AT + row * ROW_BYTES) // 8 + 9]
    overflows = words[16]
    assert overflows <= account.of_shape(REFUSED)[1]
    # Counted before it is made, and at most the call in doubt more than what was made.
    assert account.made(number) <= counted <= account.begun(number)
    assert account.begun(number) - account.returned(number) <= 1
    _check_runs(words, set(rows))
    return Found(number, described and words[7] == 0, torn)


def _check_document(data: bytes, generation: int) -> bool:
    """The copy that the header names is whole."""
    if not generation:
        return False
    start = 4096 + (generation & 1) * 16_384
    length, crc = struct.unpack_from("<QQ", data, start)
    text = data[start + 16 : start + 16 + length]
    assert zlib.crc32(text) == crc
    told: dict[str, Any] = json.loads(text)
    number, _, rest = told.get("info", {}).get("text", "").partition(" ")
    assert rest == f"{number} " * (int(number or 1) % 1000 - 1)
    return True


def _is_torn(data: bytes, words: memoryview, row: int, account: Account) -> bool:
    """Whether a folded row is; any other must be whole, and what the account says."""
    start = ROWS_AT + row * ROW_BYTES
    packed = data[start + 8 : start + 8 + _SHAPE.size]
    counts = words[start // 8 + 9 : start // 8 + 15]
    if words[start // 8] != 1 << 32 | zlib.crc32(packed):
        assert row >= EXACT, "a row that the header counts is whole"
        return True
    batch, heads, q_len = _SHAPE.unpack(packed)[6:9]
    assert list(counts[1:4]) == [0, 0, 0]
    if batch < 1 << 16:
        assert (heads, q_len) == (heads_of(batch), q_len_of(batch))
        if row < EXACT and not account.slots:
            made, begun = account.of_shape(batch)
            assert made <= counts[0] <= begun
    return False


def _check_runs(words: memoryview, rows: set[int]) -> None:
    """Runs of the ring, and the current ones, are of rows that are there."""
    for word in [*words[36_864 // 8 : ROWS_AT // 8], *words[64 : 64 + 9]]:
        if word:
            assert word >> 4 & 0x3FFF in rows
            assert 1 <= word & 0xF <= 8
