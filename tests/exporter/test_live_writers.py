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
from doors import SERVE, exporter_process
from live_writer import BATCHES, NAMES
from prometheus_client.parser import text_string_to_metric_families

from ws_guard.board.format import EXACT_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ws_guard.board import Board

NIGHTLY = os.environ.get("WS_GUARD_NIGHTLY") == "1"
WRITERS, SCRAPES = (72, 120) if NIGHTLY else (16, 10)
#: The rank whose shapes do not all have a row of their own.
FOLDING = "71"
PATIENCE = 1800.0 if NIGHTLY else 120.0
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


def read_sheet(answer: httpx.Response) -> Sheet:
    """The counts of a scrape; none of 503, since a machine may be too busy to read within 5 s."""
    sheet: defaultdict[Who, Counts] = defaultdict(dict)
    for family in text_string_to_metric_families(answer.text if answer.is_success else ""):
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


#: `serve` that reads the board more often than it must: each scrape meets another read.
OFTEN = """
from ws_guard.exporter import refresh
class Often(refresh.Refresher):
    def __init__(self, watch, log):
        super().__init__(watch, log, interval=0.01)
refresh.Refresher = Often
"""


@pytest.fixture
def url(board: Board) -> Iterator[str]:
    """An exporter as a process of its own."""
    with exporter_process({"WS_GUARD_BOARD": board.path}, OFTEN + SERVE) as (_, url):
        yield url


def scrapes(url: str) -> Iterator[Sheet]:
    """One sheet after the other, each of a later read of the board."""
    end, before = time.monotonic() + PATIENCE, Sheet()
    with httpx.Client(timeout=PATIENCE) as client:
        while time.monotonic() < end:
            sheet = read_sheet(client.get(f"{url}/metrics"))
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
    writers: list[subprocess.Popen[str]], url: str
) -> None:
    before: Sheet | None = None
    for number, sheet in enumerate(scrapes(url), 1):
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
    for process in writers:
        assert process.stdin
        process.stdin.write("stop\n")
        process.stdin.flush()
    wait_for(url, [_account(process) for process in writers])


def _account(process: subprocess.Popen[str]) -> dict[str, dict[str, int]]:
    """What a worker says that it did."""
    assert process.stdout
    account: dict[str, dict[str, int]] = json.loads(process.stdout.readline())
    return account


def wait_for(url: str, told: list[dict[str, dict[str, int]]]) -> None:
    """The end: what is exported is what the workers say, to the call."""
    expected = {
        Who(str(rank), op): counts
        for rank, account in enumerate(told)
        for op, counts in account.items()
    }
    end = time.monotonic() + PATIENCE
    while True:
        sheet = read_sheet(httpx.get(f"{url}/metrics", timeout=PATIENCE))
        found = {
            who: {**sheet.of(who, "native_calls_total"), "sum": sheet[who]["batch_size_sum", ""]}
            for who in sheet
        }
        if found == expected:
            return
        assert time.monotonic() < end, [who for who in expected if found.get(who) != expected[who]]
        time.sleep(0.05)
