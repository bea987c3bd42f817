"""Scrapes of workers that call without a pause: every one of them adds up.

With WS_GUARD_NIGHTLY=1 (`make nightly`) as many workers as a rack has, one of them with more shapes
than rows, and a hundred scrapes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest
from live_writer import BATCHES, NAMES
from prometheus_client.parser import text_string_to_metric_families

from ws_guard.board.format import EXACT_ROWS
from ws_guard.exporter.events import EventLog
from ws_guard.exporter.refresh import Refresher
from ws_guard.exporter.server import Exporter
from ws_guard.exporter.snapshot import BoardWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ws_guard.board import Board
    from ws_guard.settings import Settings

NIGHTLY = os.environ.get("WS_GUARD_NIGHTLY") == "1"
WRITERS, SCRAPES = (72, 120) if NIGHTLY else (16, 10)
#: The rank whose shapes do not all have a row of their own.
FOLDING = "71"
PATIENCE = 600.0 if NIGHTLY else 120.0
_SERIES = "ws_guard_"
_COUNTED = ("native_calls_total", "batch_size_bucket", "batch_size_count", "batch_size_sum")


class Who(NamedTuple):
    """A rank and one of its ops."""

    rank: str
    op: str


#: By series and the label that tells them apart, of one rank and op.
Counts = dict[tuple[str, str], float]


class Sheet(dict[Who, Counts]):
    """The counts of one scrape."""

    def of(self, who: Who, series: str) -> dict[str, float]:
        """The values of a series by its last label."""
        return {label: value for (name, label), value in self[who].items() if name == series}


def read_sheet(text: str) -> Sheet:
    sheet: defaultdict[Who, Counts] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = sample.name.removeprefix(_SERIES)
            if series in _COUNTED:
                who = Who(sample.labels["rank"], sample.labels["op"])
                label = sample.labels.get("mode") or sample.labels.get("le", "")
                sheet[who][series, label] = sample.value
    return Sheet(sheet)


@pytest.fixture
def writers(board: Board) -> Iterator[list[subprocess.Popen[str]]]:
    """So many workers, each a process, that have attached and call."""
    script = str(Path(__file__).with_name("live_writer.py"))
    started = []
    for rank in range(WRITERS):
        shapes = EXACT_ROWS + 500 if str(rank) == FOLDING else 0
        command = [sys.executable, script, board.path, str(rank), str(shapes)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
    for process in started:
        assert process.stdout
        assert process.stdout.readline() == "attached\n"
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def exporter(board: Board, settings: Callable[..., Settings]) -> Iterator[Exporter]:
    """An exporter that reads the board more often than it must: each scrape meets another read."""
    refresher = Refresher(BoardWatch(board), EventLog(), interval=0.01)
    exporter = Exporter(settings(), refresher)
    exporter.start()
    yield exporter
    exporter.stop()


def scrapes(exporter: Exporter) -> Iterator[Sheet]:
    """One sheet after the other, each of a later read of the board."""
    end, before = time.monotonic() + PATIENCE, Sheet()
    with httpx.Client(timeout=PATIENCE) as client:
        while time.monotonic() < end:
            sheet = read_sheet(client.get(f"{exporter.url}/metrics").text)
            if sheet != before and len(sheet) == WRITERS * len(NAMES):
                yield sheet
                before = sheet


def check_one(sheet: Sheet) -> None:
    """The histogram of each op has its eager and replayed calls, however many it had."""
    for who in sheet:
        buckets, modes = sheet.of(who, "batch_size_bucket"), sheet.of(who, "native_calls_total")
        (count,), (total,) = (
            sheet.of(who, f"batch_size_{end}").values() for end in ("count", "sum")
        )
        assert set(modes) == {"eager", "captured", "replayed"}
        assert count == modes["eager"] + modes["replayed"], who
        assert count == buckets["+Inf"], who
        cumulative = list(buckets.values())
        assert cumulative == sorted(cumulative), who
        # A folded row keeps counts and sums in words of their own: one may be a call ahead.
        if who.rank != FOLDING:
            found = [buckets[str(float(batch))] for batch in BATCHES]
            single = [more - less for less, more in zip([0, *found], found, strict=False)]
            assert total == sum(b * n for b, n in zip(BATCHES, single, strict=True)), who


@pytest.mark.timeout(2 * PATIENCE)
def test_every_scrape_adds_up_and_none_goes_back(
    writers: list[subprocess.Popen[str]], exporter: Exporter
) -> None:
    before: Sheet | None = None
    for number, sheet in enumerate(scrapes(exporter), 1):
        check_one(sheet)
        for who, counts in (before or {}).items():
            for series, value in counts.items():
                assert sheet[who][series] >= value, (who, series)
        if before is not None:
            grown = [who for who in sheet if sheet[who] != before[who]]
            assert grown, "the workers do call meanwhile"
        before = sheet
        if number == SCRAPES:
            break
    else:
        pytest.fail(f"no {SCRAPES} different scrapes in {PATIENCE:.0f} s")
    told = [_stop(process) for process in writers]
    wait_for(exporter, told)


def _stop(process: subprocess.Popen[str]) -> dict[str, dict[str, int]]:
    """What a worker says that it did."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("stop\n")
    process.stdin.flush()
    account: dict[str, dict[str, int]] = json.loads(process.stdout.readline())
    return account


def wait_for(exporter: Exporter, told: list[dict[str, dict[str, int]]]) -> None:
    """The end: what is exported is what the workers say, to the call."""
    expected = {
        Who(str(rank), op): counts
        for rank, account in enumerate(told)
        for op, counts in account.items()
    }
    end = time.monotonic() + PATIENCE
    while True:
        sheet = read_sheet(httpx.get(f"{exporter.url}/metrics", timeout=PATIENCE).text)
        found = {
            who: {**sheet.of(who, "native_calls_total"), "sum": sheet[who]["batch_size_sum", ""]}
            for who in sheet
        }
        if found == expected:
            return
        assert time.monotonic() < end, [who for who in expected if found.get(who) != expected[who]]
        time.sleep(0.05)
