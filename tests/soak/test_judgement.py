"""What judges the soak: it finds what is wrong. Books here are real files, killed workers too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from book import BEGUN, DONE, MODES, Book, Bounds, call_cell, event_cell, sum_cell
from history import Instant, inconsistent
from observers import differences, lasting

from ws_guard.sizing import OPS

DECODE = OPS["decode"]
HERE = Path(__file__).parent


def make(book: Book, batch: int, mode: str = "eager", *, ended: bool = True) -> None:
    """Note a call."""
    for side in (BEGUN, DONE) if ended else (BEGUN,):
        book.words[side + call_cell(DECODE, mode, batch)] += 1
        if mode in ("eager", "replayed"):
            book.words[side + sum_cell(DECODE)] += batch


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """Two eager calls, of 4 and 5 rows, a replayed one of 70, one of each other mode."""
    book = Book(tmp_path / "book")
    for batch in (4, 5):
        make(book, batch)
    make(book, 70, "replayed")
    for mode in ("captured", "tuning"):
        make(book, 1, mode)
    return book


def told(**changes: float) -> dict[tuple[str, str, str], float]:
    """What an exporter tells of that book."""
    found: dict[tuple[str, str, str], float] = {
        ("native_calls_total", DECODE, mode): number
        for mode, number in zip(MODES, (2, 1, 1, 1), strict=True)
    }
    found |= {("batch_size_count", DECODE, ""): 3, ("batch_size_sum", DECODE, ""): 79}
    # Up to 4 rows one, up to 16 two, all three from 256 on.
    below = {"1.0": 0, "4.0": 1, "16.0": 2, "64.0": 2, "256.0": 3, "1024.0": 3, "4096.0": 3}
    below |= {"16384.0": 3, "65536.0": 3, "+Inf": 3}
    found |= {("batch_size_bucket", DECODE, le): number for le, number in below.items()}
    return found | {("native_calls_total", DECODE, mode): n for mode, n in changes.items()}


def test_a_book_says_what_the_exporter_has_to_tell(book: Book) -> None:
    assert differences(book.account(), told()) == []
    assert (book.calls("eager", "replayed"), book.doubt()) == (3, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by", [-1, 1])
def test_a_single_call_more_or_less_is_found(book: Book, mode: str, by: int) -> None:
    right = told()["native_calls_total", DECODE, mode]
    (wrong,) = differences(book.account(), told(**{mode: right + by}))
    assert wrong == f"native_calls_total {DECODE} {mode}: told {right + by:.0f}, made {right}"


def test_a_series_that_nobody_made_is_found(book: Book) -> None:
    extra = {("overflows_total", "another_op", "observed"): 1.0}
    assert differences(book.account(), told() | extra) == [
        "overflows_total another_op observed: nobody made it"
    ]


def test_a_call_that_was_begun_may_count_or_not(book: Book) -> None:
    make(book, 4, ended=False)
    assert book.doubt() == 1
    account = lasting(book.account())
    assert account["native_calls_total", DECODE, "eager"] == Bounds(2, 3)
    for number, wrong in ((1, 1), (2, 0), (3, 0), (4, 1)):
        assert len(differences(account, lasting(told(eager=number)))) == wrong


def test_overflows_are_kept_by_op_and_action(book: Book) -> None:
    for side in (BEGUN, DONE):
        book.words[side + event_cell(DECODE, "split")] += 2
    account = book.account()
    assert account["overflows_total", DECODE, "split"] == Bounds(2, 2)
    assert account["overflows_total", DECODE, "raised"] == Bounds(0, 0)
    assert (book.events("split"), book.events("observed")) == (2, 0)


_WRITER = """
import os, sys
from pathlib import Path
from book import BEGUN, DONE, Book
book = Book(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    book.words[BEGUN] += 1
    book.words[DONE] += 1
"""


def test_a_book_outlives_a_kill_with_one_call_in_doubt_at_most(tmp_path: Path) -> None:
    path = tmp_path / "book"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parents[1])))}
    command = [sys.executable, "-c", _WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        seen = Book(path)
        while seen.words[DONE] < 1_000:
            pass
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
    assert seen.words[BEGUN] - seen.words[DONE] in (0, 1)
    assert seen.words[DONE] >= 1_000


def scraped(*instants: tuple[bool, dict[Any, float]]) -> list[str]:
    """What is found in scrapes, a second apart."""
    return inconsistent({float(at): Instant(*one) for at, one in enumerate(instants)})[0]


def test_scrapes_that_fit_together_are_fine() -> None:
    assert scraped((True, told()), (True, told()), (False, lasting(told()))) == []


def test_a_histogram_beside_other_counts_is_found() -> None:
    (wrong,) = scraped((True, told(eager=3)))
    assert wrong == f"at 0.0: {DECODE} has 4 calls, its histogram 3"


def test_a_count_that_falls_is_found() -> None:
    (wrong,) = scraped((False, lasting(told())), (False, lasting(told(tuning=0))))
    assert "tuning fell from 1 to 0" in wrong


def test_a_count_that_goes_is_found() -> None:
    short = lasting(told())
    del short["native_calls_total", DECODE, "tuning"]
    (wrong,) = scraped((False, lasting(told())), (False, short))
    assert "tuning fell from 1 to None" in wrong


def test_a_histogram_of_a_dead_worker_is_found() -> None:
    assert scraped((False, told())) == ["at 0.0: a dead worker has a histogram"]
