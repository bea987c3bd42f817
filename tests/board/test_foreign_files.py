"""Files on a board that are no slots, or no longer whole: each is refused with its reason."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from board_worker import LEFT_BYTES, LEFT_DOCUMENT, patch_word, read

from ws_guard.board import Board, SlotError, SlotView, list_slots
from ws_guard.board.format import (
    DOCUMENT_BYTES,
    DOCUMENT_OFFSET,
    HEADER_BYTES,
    MAX_BYTES,
    NONE,
    RING_OFFSET,
    ROW_BYTES,
    ROWS_OFFSET,
    SLOT_BYTES,
    Header,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Look = Callable[[], SlotView]

NOBODY = 65_534


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_a_file_shorter_than_a_header_is_refused(path: str, look: Look, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(SlotError, match=f"it has {size} bytes, a slot has 2093056"):
        look()


@pytest.mark.parametrize(
    "size",
    [
        HEADER_BYTES,
        *(DOCUMENT_OFFSET + DOCUMENT_BYTES + n for n in (-1, 0, 1, 16, 17, DOCUMENT_BYTES - 1)),
        *(RING_OFFSET + n for n in (0, 1, 8, 8_191)),
        *(ROWS_OFFSET + n for n in (0, 1, 8, ROW_BYTES)),
        LEFT_BYTES - 1,
    ],
)
def test_a_slot_that_ends_before_its_rows_is_refused(path: str, look: Look, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(SlotError, match=f"it ends at byte {size}"):
        look()


def test_a_slot_that_ends_behind_its_rows_has_lost_nothing(path: str, look: Look) -> None:
    whole = look()
    os.truncate(path, LEFT_BYTES)
    assert look() == whole


def test_a_large_file_is_not_looked_into(path: str, look: Look) -> None:
    os.truncate(path, MAX_BYTES)
    look()
    os.truncate(path, MAX_BYTES + 1)
    with pytest.raises(SlotError, match="it has 2097153 bytes"):
        look()


@pytest.mark.parametrize(
    ("word", "value", "reason"),
    [
        (Header.MAGIC, 0, "it is not a slot"),
        (Header.MAGIC, int.from_bytes(b"WS_GUARE", "little"), "it is not a slot"),
        (Header.VERSION, 2, "it has format version 2, known is 1"),
        (Header.VERSION, 0, "it has format version 0, known is 1"),
        (Header.SLOT_BYTES, NONE, "its header speaks of 18446744073709551615 bytes"),
        (Header.SLOT_BYTES, SLOT_BYTES - 128, "its header speaks of 2092928 bytes"),
    ],
)
def test_a_foreign_header_is_refused(
    path: str, look: Look, word: Header, value: int, reason: str
) -> None:
    patch_word(path, word, value)
    with pytest.raises(SlotError, match=reason):
        look()


def test_noise_is_refused(path: str, look: Look) -> None:
    Path(path).write_bytes(os.urandom(SLOT_BYTES))
    with pytest.raises(SlotError, match="it is not a slot"):
        look()


def make_link(path: str) -> None:
    os.rename(path, path + ".moved")
    os.symlink(path + ".moved", path)


def make_second_name(path: str) -> None:
    os.link(path, path + ".second")


def make_fifo(path: str) -> None:
    os.unlink(path)
    os.mkfifo(path)


def make_directory(path: str) -> None:
    os.unlink(path)
    os.mkdir(path)


def make_socket(path: str) -> None:
    os.unlink(path)
    here = os.open(os.path.dirname(path), os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listener:
        # A path of its own may be too long for a socket.
        listener.bind(f"/proc/self/fd/{here}/{os.path.basename(path)}")
    os.close(here)


def make_device(path: str) -> None:
    os.unlink(path)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero


def give_away(path: str) -> None:
    os.chown(path, NOBODY, -1)


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (make_link, OSError, "Too many levels of symbolic links"),
        (make_second_name, SlotError, "it has 2 links"),
        (make_fifo, SlotError, "it is not a regular file"),
        (make_directory, SlotError, "it is not a regular file"),
        (make_socket, OSError, "No such device or address"),
        (os.unlink, FileNotFoundError, "No such file"),
    ],
)
def test_what_is_no_file_of_a_worker_is_refused(
    path: str, look: Look, make: Callable[[str], None], error: type[Exception], reason: str
) -> None:
    make(path)
    with pytest.raises(error, match=reason):
        look()


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_device, "it is not a regular file"),
        (give_away, "it belongs to uid 65534, which is not trusted"),
    ],
)
def test_what_root_can_put_in_its_place_is_refused(
    path: str, look: Look, make: Callable[[str], None], reason: str
) -> None:
    make(path)
    with pytest.raises(SlotError, match=reason):
        look()


@pytest.mark.usefixtures("root")
def test_a_slot_of_a_trusted_user_is_read(board: Board, path: str) -> None:
    give_away(path)
    assert read(board._replace(trusted_uids=(NOBODY,)), path).document == LEFT_DOCUMENT


def test_names_on_a_board_are_told_apart(board: Board, path: str) -> None:
    for name in (".1.2.3.slot", "notes.txt", "0.slot"):
        Path(board.path, name).write_text("")
    directory = os.open(board.path, os.O_RDONLY)
    assert list_slots(directory) == (["0.slot", os.path.basename(path)], ["notes.txt"])
    os.close(directory)
