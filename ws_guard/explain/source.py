"""Where a log comes from: a file or standard input, compressed or not, as a stream of bytes."""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import os
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, TextIO, cast

from ws_guard.sizing import InputError

Opener = Callable[[Any], io.BufferedIOBase]

#: By the first bytes of a file, whatever its name.
_COMPRESSIONS: tuple[tuple[bytes, Opener], ...] = (
    (b"\x1f\x8b", lambda raw: gzip.GzipFile(fileobj=raw, mode="rb")),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)
_UNREADABLE: tuple[tuple[bytes, str], ...] = (
    (b"\x28\xb5\x2f\xfd", "zstd -dc FILE"),
    (b"PK\x03\x04", "unzip -p FILE"),
)
#: Byte order marks of what PowerShell writes.
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_MOST_PACKED = 4
_PROGRESS_SECONDS = 0.5
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class Source(NamedTuple):
    """An open log. `read_into` fills a buffer and returns the bytes read, 0 at the end.

    `problem` then says why there may be more than what was read; "" where that was all.
    """

    name: str
    read_into: Callable[[memoryview], int]
    problem: Callable[[], str]


@contextmanager
def open_log(path: str) -> Iterator[Source]:
    """Open a log; `-` is standard input. `InputError` for what cannot be read."""
    name = "standard input" if path == "-" else path
    try:
        with _open(path) as raw:
            progress = _Progress(raw, _stderr())
            buffered = io.BufferedReader(_Raw(raw, progress), 1 << 17)
            stream = _decompressed(buffered, name)
            try:
                reader = _Reader(stream, name)
                yield Source(name, reader.read_into, reader.problem)
            finally:
                progress.clear()
    except OSError as error:
        raise InputError(_reason(name, error)) from None


def _reason(name: str, error: OSError) -> str:
    """A line that names the log and says what to do."""
    if error.errno == errno.EISDIR:
        return f"{name} is a directory: name a log file, or pass --board for a board"
    return f"{name} cannot be read: {error.strerror or error}"


def _open(path: str) -> BinaryIO:
    if path == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed: name a log file")
        return open(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    try:
        return open(path, "rb", buffering=0)
    except ValueError as error:  # a name with a zero byte
        raise InputError(f"{path!r} cannot be a file: {error}") from None


class _Raw(io.RawIOBase):
    """The bytes as they lie on disk, counted for the progress line."""

    def __init__(self, raw: BinaryIO, progress: _Progress) -> None:
        self._raw, self._progress = raw, progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        read: int = self._raw.readinto(buffer) or 0  # type: ignore[attr-defined]  # unbuffered
        self._progress.add(read)
        return read


def _decompressed(buffered: io.BufferedReader[Any], name: str) -> io.BufferedIOBase:
    """The log itself: what was packed may have been packed before."""
    stream: Any = buffered
    for _ in range(_MOST_PACKED):
        head = _head(stream)
        for magic, command in _UNREADABLE:
            if head.startswith(magic):
                raise InputError(f"{name} is compressed: {command} | ws-guard explain -")
        opener = next((opener for magic, opener in _COMPRESSIONS if head.startswith(magic)), None)
        if opener is None:
            return cast("io.BufferedIOBase", stream)
        stream = opener(stream)
    raise InputError(f"{name} is packed {_MOST_PACKED} times or more: unpack it first")


def _head(stream: Any) -> bytes:  # noqa: ANN401 - whatever is peeked into
    try:
        return bytes(stream.peek(8)[:8])
    except _BROKEN:
        return b""  # the reader meets it again, and tells


class _Reader:
    """Reads on until the end; what is broken behind a readable part ends the log there."""

    def __init__(self, stream: io.BufferedIOBase, name: str) -> None:
        self._stream, self._name = stream, name
        self._any = self._cut = False
        self._decoder: codecs.IncrementalDecoder | None = None
        self._left = b""

    def read_into(self, buffer: memoryview) -> int:
        """Bytes of UTF-8, or of whatever the log is written in."""
        if self._decoder is None:
            read = self._read(buffer)
            encoding = _UTF16.get(bytes(buffer[:2])) if not self._any and read > 1 else None
            self._any = self._any or read > 0
            if encoding is None:
                return read
            self._decoder = codecs.getincrementaldecoder(encoding)("replace")
            self._left = self._decoder.decode(bytes(buffer[2:read])).encode(errors="replace")
        while not self._left:
            half = bytearray(len(buffer) // 2)
            read = self._read(memoryview(half))
            if not read:
                return 0
            self._left = self._decoder.decode(bytes(half[:read])).encode(errors="replace")
        part, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def problem(self) -> str:
        """Why there may be more to the log than what was read; "" where that was all of it."""
        if not self._any:
            return f"{self._name} is empty: look whether the command that writes it failed"
        if self._cut:
            return (
                f"{self._name} is an archive that ends early, with no known fault in what is there"
            )
        return ""

    def _read(self, buffer: memoryview) -> int:
        try:
            # One read at a time: what came before a broken part is not lost.
            return self._stream.readinto1(buffer) or 0
        except _BROKEN as error:
            if self._any:
                self._cut = True
                return 0  # a log that was cut off while it was packed
            raise InputError(f"{self._name} cannot be unpacked: {error}") from None


class _Progress:
    """A line on a terminal that says how far the reading is; nothing anywhere else."""

    def __init__(self, raw: BinaryIO, stream: TextIO | None) -> None:
        self._stream = stream
        self._done = 0
        self._due = time.monotonic() + _PROGRESS_SECONDS
        found = os.fstat(raw.fileno())
        self._size = found.st_size if stat.S_ISREG(found.st_mode) else 0
        self._shown = False

    def add(self, read: int) -> None:
        """So many bytes more."""
        self._done += read
        if self._stream is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _PROGRESS_SECONDS
        of = f" of {self._size >> 20:,}" if self._size else ""
        self._write(f"\rreading: {self._done >> 20:,}{of} MiB ")
        self._shown = True

    def clear(self) -> None:
        """Leave an empty line behind."""
        if self._shown:
            self._write("\r" + " " * 60 + "\r")

    def _write(self, text: str) -> None:
        try:
            if self._stream is not None:
                print(text, end="", file=self._stream, flush=True)
        except (OSError, ValueError):
            self._stream = None


def _stderr() -> TextIO | None:
    try:
        return sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
    except ValueError:
        return None
