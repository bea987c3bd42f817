"""What Prometheus kept of the soak: every scrape of it, held against the books of every life."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from observers import COUNTED, LASTING, PREFIX, Scraper, Told, differences, lasting, series_of

if TYPE_CHECKING:
    from crew import Life

_START = "worker_start_timestamp_seconds"
_TRIES = 5


class Instant(NamedTuple):
    """The counts of a rank in one scrape, and whether its worker was up."""

    up: bool
    told: Told


class Span(NamedTuple):
    """The time that is looked at: so many seconds up to a moment (of the epoch).

    One moment for all questions: scrapes go on while they are asked.
    """

    seconds: float
    end: float


#: By the moment of the scrape.
Instants = dict[float, Instant]


class Scrapes(NamedTuple):
    """How the scrapes themselves went. Seconds."""

    number: int
    failed: int
    longest_gap: float
    longest: float
    mean: float
    most_samples: float


class Findings(NamedTuple):
    """What all samples of all ranks came to."""

    instants: int
    histograms: int
    lives: int
    calls: float
    problems: list[str]


def scrapes(scraper: Scraper, span: Span) -> Scrapes:
    """How every scrape went."""
    up = _samples(scraper, "up", span)[0][1]
    took = [value for _, value in _samples(scraper, "scrape_duration_seconds", span)[0][1]]
    size = [value for _, value in _samples(scraper, "scrape_samples_scraped", span)[0][1]]
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(up)]
    failed = sum(value != 1 for _, value in up)
    return Scrapes(len(up), failed, max(gaps), max(took), sum(took) / len(took), max(size))


def ever(scraper: Scraper, name: str, span: Span) -> float:
    """The largest value that a metric had anywhere."""
    found = scraper.server.query(
        f"max(max_over_time({PREFIX}{name}[{span.seconds:.0f}s]))", at=span.end
    )
    return float(found[0]["value"][1]) if found else 0.0


def judge(scraper: Scraper, lives: list[Life], span: Span) -> Findings:
    """Whether every scrape is consistent, and the last of each life is what its book says."""
    problems: list[str] = []
    instants = histograms = told_of = 0
    calls = 0.0
    for rank in sorted({life.rank for life in lives}):
        own = [life for life in lives if life.rank == rank]
        seen = _lives_of(scraper, rank, span)
        if len(seen) != len(own):
            problems.append(f"rank {rank}: {len(own)} lives, Prometheus saw {len(seen)}")
        for life, scraped in zip(own, seen, strict=False):
            told_of += 1
            instants += len(scraped)
            wrong, looked = inconsistent(scraped)
            histograms += looked
            last = scraped[max(scraped)]
            wrong += _unlike_its_book(life, scraped)
            problems += [f"{life.name}: {each}" for each in wrong]
            calls += _calls(last.told)
    return Findings(instants, histograms, told_of, calls, problems)


def _lives_of(scraper: Scraper, rank: int, span: Span) -> list[Instants]:
    """What was scraped of each life of a rank, one after the other.

    Lives are told apart by the moment of their attachment, as it was scraped beside the counts.
    """

    def of_rank(name: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        return _samples(scraper, f'{PREFIX}{name}{{rank="{rank}"}}', span)

    start_of, up = dict(of_rank(_START)[0][1]), dict(of_rank("worker_up")[0][1])
    lives: dict[float, Instants] = defaultdict(dict)
    for moment, start in start_of.items():
        lives[start][moment] = Instant(up[moment] == 1, {})
    for name in COUNTED:
        for labels, samples in of_rank(name):
            series = series_of(name, labels)
            for moment, value in samples:
                lives[start_of[moment]][moment].told[series] = value
    return [lives[start] for start in sorted(lives)]


def _unlike_its_book(life: Life, scraped: Instants) -> list[str]:
    """Where the last scrapes of a life are not what its book says, and what the exporter told."""
    last = scraped[max(scraped)]
    living = [scraped[moment] for moment in sorted(scraped) if scraped[moment].up]
    wrong = differences(lasting(life.account), lasting(last.told))
    if lasting(last.told) != lasting(life.told):
        wrong.append("the last scrape is not what the exporter told in the end")
    if life.left_in_order:
        wrong += differences(life.account, living[-1].told)
    elif living:
        wrong += [
            f"{' '.join(series)}: {value:,.0f} while it lived, {life.account[series].most:,} made"
            for series, value in living[-1].told.items()
            if value > life.account[series].most
        ]
    return wrong


def inconsistent(scraped: Instants) -> tuple[list[str], int]:
    """What does not fit together within a scrape, or from one to the next; histograms looked at."""
    wrong: list[str] = []
    looked = 0
    before: Told = {}
    for moment in sorted(scraped):
        up, told = scraped[moment]
        if not up and any(name not in LASTING for name, _, _ in told):
            wrong.append(f"at {moment}: a dead worker has a histogram")
        for op in {op for name, op, _ in told if name == "batch_size_count"}:
            looked += 1
            ran = sum(told.get(("native_calls_total", op, m), 0) for m in ("eager", "replayed"))
            count = told["batch_size_count", op, ""]
            if not count == ran == told["batch_size_bucket", op, "+Inf"]:
                wrong.append(f"at {moment}: {op} has {ran:,.0f} calls, its histogram {count:,.0f}")
        wrong += [
            f"at {moment}: {' '.join(series)} fell from {value:,.0f} to {told.get(series)}"
            for series, value in (before if up else lasting(before)).items()
            if told.get(series, 0) < value
        ]
        before = told
    return wrong, looked


def _calls(told: Told) -> float:
    return sum(
        value
        for (name, _, mode), value in told.items()
        if name == "native_calls_total" and mode in ("eager", "replayed")
    )


def _samples(
    scraper: Scraper, selector: str, span: Span
) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """Raw samples of every series of a selector: (labels, [(moment, value)])."""
    for attempt in itertools.count():
        try:
            found: list[Any] = scraper.server.query(f"{selector}[{span.seconds:.0f}s]", at=span.end)
            break
        except AssertionError:  # a busy machine: too long for one answer
            if attempt == _TRIES:
                raise
            time.sleep(1)
    return [
        (each["metric"], [(float(moment), float(value)) for moment, value in each["values"]])
        for each in found
    ]
