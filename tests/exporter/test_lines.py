"""Lines that go out from a thread of their own, read by nobody in the worst case."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
import time
from typing import TYPE_CHECKING, TextIO

import pytest
from doors import PATIENCE, wait_until

from ws_guard.exporter.events import EventLog
from ws_guard.exporter.lines import LineWriter
from ws_guard.exporter.refresh import Refresher
from ws_guard.exporter.snapshot import BoardWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Attach

    from ws_guard.board import Board


PIPE_BYTES = 1 << 16


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe that is full: reading end, and the stream that nobody can write to."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4_096)
    os.set_blocking(writing, True)
    with open(writing, "w") as stream:
        yield reading, stream
        os.close(reading)


def read_on(reading: int, until: str) -> list[str]:
    text = ""
    while until not in text:
        text += os.read(reading, PIPE_BYTES).decode()
    return [line for line in text.lstrip("x").splitlines() if line]


def test_a_pipe_that_nobody_reads_stops_nothing(pipe: tuple[int, TextIO]) -> None:
    reading, stream = pipe
    writer = LineWriter(stream, most_waiting=2)
    writer.start()
    done = threading.Event()

    def tell() -> None:
        writer.put("stuck")
        while writer._waiting:  # until the thread has taken it and is stuck in it
            time.sleep(0.001)
        for number in range(5):
            writer.put(f"line {number}")
        done.set()

    threading.Thread(target=tell, daemon=True).start()
    assert done.wait(PATIENCE)
    lines = read_on(reading, "lines_dropped")
    assert lines[:3] == ["stuck", "line 0", "line 1"]
    told = json.loads(lines[3])
    assert (told["event"], told["count"]) == ("lines_dropped", 3)
    writer.stop()


def test_the_board_is_read_on_when_nobody_reads_the_log(
    attach: Attach, board: Board, pipe: tuple[int, TextIO]
) -> None:
    attach().overflow()
    refresher = Refresher(BoardWatch(board), EventLog(pipe[1]), interval=0.01)
    refresher.start()
    attach(rank="1")
    wait_until(lambda: len(refresher.latest().slots) == 2)
    started = time.monotonic()
    refresher.stop()
    assert time.monotonic() - started < PATIENCE
    read_on(pipe[0], "overflow")


def test_stop_writes_what_waits() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    writer.start()
    for number in range(1_000):
        writer.put(str(number))
    writer.stop(PATIENCE)
    assert stream.getvalue().splitlines() == [str(number) for number in range(1_000)]
    writer.put("after")  # without a thread: at once
    assert stream.getvalue().endswith("999\nafter\n")


def test_start_and_stop_as_often_as_one_likes() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    for number in range(3):
        writer.start()
        writer.start()
        writer.put(str(number))
        writer.stop(PATIENCE)
        writer.stop()
    assert stream.getvalue() == "0\n1\n2\n"


def test_without_a_standard_error_nobody_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    LineWriter().put("a line")
    assert capsys.readouterr().out == ""
