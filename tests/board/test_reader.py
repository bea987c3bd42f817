"""Readings of slots: whatever lies on a board, a view or an error comes of it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from board_worker import (
    LEFT_BYTES,
    LEFT_DOCUMENT,
    LEFT_ROWS,
    make_shape,
    patch,
    patch_word,
    read,
    run_script,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ws_guard.board import OVERFLOW, Board, Outcome, SlotError, SlotReader, SlotView
from ws_guard.board.format import (
    COUNT_EAGER,
    DOCUMENT_BYTES,
    DOCUMENT_OFFSET,
    NONE,
    RING_OFFSET,
    ROW_BYTES,
    ROWS_OFFSET,
    SLOT_BYTES,
    Header,
    Shape,
    pack_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Look = Callable[[], SlotView]


def publish(path: str, text: bytes, crc: int | None = None) -> None:
    """Put a document into the slot in the worker's place."""
    with open(path, "rb") as file:
        file.seek(8 * Header.DOCUMENT)
        generation = int.from_bytes(file.read(8), "little") + 1
    start = DOCUMENT_OFFSET + generation % 2 * DOCUMENT_BYTES
    patch_word(path, start // 8, len(text))
    patch_word(path, start // 8 + 1, zlib.crc32(text) if crc is None else crc)
    patch(path, start + 16, text)
    patch_word(path, Header.DOCUMENT, generation)


def row_word(row: int, word: int) -> int:
    return (ROWS_OFFSET + row * ROW_BYTES) // 8 + word


def test_a_slot_is_read_as_it_was_written(look: Look) -> None:
    view = look()
    assert [(row.shape, row.eager) for row in view.rows] == [
        (make_shape(batch=batch), batch) for batch in (1, 2, 3)
    ]
    assert not any(row.folded or row.captured or row.replayed or row.tuning for row in view.rows)
    assert view.document == LEFT_DOCUMENT
    assert view.events == {(0, OVERFLOW, "observed"): 1}
    assert [(call.shape.batch, call.outcome) for call in view.calls] == [
        (1, Outcome.EAGER),
        (3, Outcome.OVERFLOW),
    ]
    assert (view.pid, view.alive, view.closed) == (os.getpid(), False, False)


def test_reading_maps_no_file(board: Board, path: str) -> None:
    """A mapping of a slot that is cut short kills its reader; every mapping raises an event."""
    script = """
import sys
from board_worker import Board, Slot, read
events = []
sys.addaudithook(lambda name, _: events.append(name) if name == "mmap.__new__" else None)
read(Board(sys.argv[1]), sys.argv[2])
read_events = len(events)
Slot.on_board(Board(sys.argv[1])).close()
print(read_events, len(events))
"""
    assert run_script(script, board.path, path) == "0 1\n"


def test_a_worker_that_closes_while_it_is_read_is_no_dead_one(board: Board) -> None:
    """It closes between the reading of its header and the question for its lock."""
    script = """
import sys
from board_worker import Board, Slot, read
slot = Slot.on_board(Board(sys.argv[1]))
sys.addaudithook(lambda name, _: slot.close() if name == "fcntl.fcntl" else None)
view = read(Board(sys.argv[1]), slot.path)
print(view.alive, view.closed)
"""
    assert run_script(script, board.path) == "False True\n"


# -- documents --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b'{"engine": "\xff"}', "not JSON"),
        (b'{"n": ' + b"9" * 5_000 + b"}", "not JSON"),
        (b"[" * 16_000, "not JSON"),
        (b'{"a":' * 3_000, "not JSON"),
        (b"[]", "not an object"),
        (b"null", "not an object"),
    ],
)
def test_a_document_that_is_none_is_refused(
    path: str, look: Look, text: bytes, reason: str
) -> None:
    publish(path, text)
    with pytest.raises(SlotError, match=f"its document is {reason}"):
        look()


def test_a_document_without_its_checksum_is_not_believed(board: Board, path: str) -> None:
    reader = SlotReader(os.path.basename(path))
    assert read(board, path, reader).document == LEFT_DOCUMENT
    publish(path, b'{"engine": "1"}', crc=7)
    assert read(board, path, reader).document == LEFT_DOCUMENT, "the one from before holds"
    assert read(board, path).document == {}, "there was none before"
    publish(path, b'{"engine": "2"}')
    assert read(board, path, reader).document == {"engine": "2"}


@pytest.mark.parametrize("length", [DOCUMENT_BYTES - 15, NONE])
def test_a_document_longer_than_its_place_is_not_believed(
    path: str, look: Look, length: int
) -> None:
    patch_word(path, (DOCUMENT_OFFSET + DOCUMENT_BYTES) // 8, length)
    assert look().document == {}


# -- rows, counts and calls -------------------------------------------------------------------


@pytest.mark.parametrize("byte", [0, 3, 4, 7, 8, 20, 71])
def test_a_row_without_its_seal_is_passed_over(path: str, look: Look, byte: int) -> None:
    """Bytes 0 to 7 are the seal, 8 to 71 the shape."""
    place = ROWS_OFFSET + ROW_BYTES + byte
    patch(path, place, bytes([Path(path).read_bytes()[place] ^ 0x10]))
    view = look()
    assert [row.shape.batch for row in view.rows] == [1, 3]
    assert [call.shape.batch for call in view.calls] == [1, 3]


def test_absurd_counts_are_read_as_they_stand(path: str, look: Look) -> None:
    patch_word(path, row_word(0, COUNT_EAGER), NONE)
    patch_word(path, Header.ATTACHED_NS, NONE)
    view = look()
    assert view.rows[0].eager == view.attached_ns == 18_446_744_073_709_551_615
    assert len(view.calls) == 2


@pytest.mark.parametrize("count", [4, 14_464, 14_465, NONE])
def test_more_rows_than_there_are_add_none(path: str, look: Look, count: int) -> None:
    patch_word(path, Header.EXACT_ROWS, count)
    patch_word(path, Header.FOLD_ROWS, count)
    assert [row.shape.batch for row in look().rows] == [1, 2, 3]


@pytest.mark.parametrize("row", [LEFT_ROWS, 14_464, 16_383])
def test_a_call_of_a_missing_row_is_passed_over(path: str, look: Look, row: int) -> None:
    patch_word(path, RING_OFFSET // 8, pack_run(0, row, Outcome.EAGER))
    assert [call.shape.batch for call in look().calls] == [3]


def test_a_call_of_no_known_outcome_is_handed_on(path: str, look: Look) -> None:
    patch_word(path, RING_OFFSET // 8, NONE >> 18 << 18 | 15)
    patch_word(path, Header.ATTACHED_CLOCK, 0)
    view = look()
    assert (view.calls[-1].shape.batch, view.calls[-1].outcome) == (1, 15)
    assert view.calls[-1].at_ns == view.attached_ns + ((1 << 46) - 1) * 1024


# -- files that change ------------------------------------------------------------------------


def test_a_slot_in_the_place_of_another_is_read_anew(board: Board, path: str) -> None:
    """Same name, same generation of the document, same seals: the reader remembers nothing."""
    reader = SlotReader(os.path.basename(path))
    read(board, path, reader)
    other = path + ".new"
    shutil.copy(path, other)
    publish(other, b'{"rank":"7"}')
    patch_word(other, Header.DOCUMENT, 1)
    patch(other, DOCUMENT_OFFSET + DOCUMENT_BYTES, Path(other).read_bytes()[DOCUMENT_OFFSET:][:64])
    patch(other, ROWS_OFFSET + 8, b"\x07")
    os.replace(other, path)
    view = read(board, path, reader)
    assert view == read(board, path)
    assert view.document == {"rank": "7"}
    assert [row.shape.batch for row in view.rows] == [2, 3]


def test_a_slot_written_over_in_place_is_read_anew(board: Board, path: str) -> None:
    reader = SlotReader(os.path.basename(path))
    read(board, path, reader)
    patch_word(path, Header.ATTACHED_NS, 5)
    patch(path, ROWS_OFFSET + 8, b"\x07")
    assert [row.shape.batch for row in read(board, path, reader).rows] == [2, 3]


def test_a_row_being_rewritten_keeps_its_shape(board: Board, path: str) -> None:
    reader = SlotReader(os.path.basename(path))
    read(board, path, reader)
    patch(path, ROWS_OFFSET + 8, b"\x07")
    assert [row.shape.batch for row in read(board, path, reader).rows] == [1, 2, 3]


def read_if_whole(board: Board, path: str, reader: SlotReader) -> SlotView | None:
    try:
        return read(board, path, reader)
    except SlotError:
        return None


def test_cutting_a_slot_short_under_its_readers_harms_none(board: Board, path: str) -> None:
    whole = Path(path).read_bytes()
    enough = threading.Event()

    def cut_and_mend() -> None:
        size = 0
        while not enough.is_set():
            size = (size + 4_099) % LEFT_BYTES
            os.truncate(path, size)
            patch(path, 0, whole[:LEFT_BYTES])

    cutter = threading.Thread(target=cut_and_mend)
    cutter.start()
    reader = SlotReader(os.path.basename(path))
    tally = {"whole": 0, "refused": 0}
    try:
        while min(tally.values()) < 100:
            view = read_if_whole(board, path, reader)
            tally["whole" if view else "refused"] += 1
            assert view is None or [row.shape.batch for row in view.rows] == [1, 2, 3]
    finally:
        enough.set()
        cutter.join()


places = st.one_of(
    st.integers(0, 63 * 8),
    st.integers(DOCUMENT_OFFSET + DOCUMENT_BYTES, DOCUMENT_OFFSET + DOCUMENT_BYTES + 48),
    st.integers(RING_OFFSET, RING_OFFSET + 32),
    st.integers(ROWS_OFFSET, LEFT_BYTES),
    st.integers(0, SLOT_BYTES - 1),
)


@given(st.lists(st.tuples(places, st.integers(1, 255)), min_size=1, max_size=40))
@settings(
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_damage_gets_beyond_an_error(
    board: Board, path: str, flips: list[tuple[int, int]]
) -> None:
    before = Path(path).read_bytes()
    damaged = bytearray(before)
    for place, bits in flips:
        damaged[place] ^= bits
    with open(path, "r+b") as file:
        file.write(damaged)
    try:
        view = read(board, path)
        assert all(isinstance(row.shape, Shape) for row in view.rows)
        json.dumps(view.document)
    except (SlotError, OSError):
        pass
    finally:
        with open(path, "r+b") as file:
            file.write(before)
