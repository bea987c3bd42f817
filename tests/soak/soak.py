"""The soak: `python tests/soak/soak.py --seconds 3600 --workers 16 --rate 20000 --seed 7`.

Workers with a real probe over the real launcher call, overflow, replay and tune at a fixed rate
together; `ws-guard serve` shows them, and a real Prometheus scrapes it every second. Workers are
killed at random, told to end by SIGTERM, exit, and start again as the same rank; now and then the
upper half of them dies at once. Each keeps a book of its own (`book`). At the end of every life,
and of all, the exporter and Prometheus must tell what the books say: to the call where the worker
ended in order, and but for the one call or replay that it was in where it was killed.

Exit code 0 where all of that held, 1 where it did not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

import history
from book import ACTIONS
from crew import Crew, Life
from fate import HOARDER, VETERANS, Fate
from observers import Exporter, Scraper, exporter, scraper, told_of_life, weigh_session
from report import Report, table
from scales import Scales, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How much less nice exporter and Prometheus are than the workers, where that is said at all: a
#: scrape that takes longer than a second is a failed one.
_BEFORE = 5
#: What the exporter may have grown by once it has settled.
_GROWTH = 1.25
#: Series that tell of something wrong with the probe, the board or the exporter.
NEVER = ("probe_errors_total", "board_read_errors_total", "identity_conflicts", "overruns_total")


def run(options: argparse.Namespace) -> Report:
    """The whole of it."""
    folder = Path(options.folder or tempfile.mkdtemp(prefix="ws_guard-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    weigh_session(os.getpid(), options.nice)
    before_them = options.nice and options.nice - _BEFORE
    report = Report(options.seed, options.seconds, options.workers, options.rate)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ws_guard-soak-") as board,
        exporter(board, options.workers, folder, before_them) as told_by,
        scraper(told_by.address, folder, before_them) as watched_by,
    ):
        began = time.time()
        crew = Crew(folder, board, options.workers, options.rate, options.seed, told_by)
        try:
            _soak(options, crew, told_by, watched_by, report)
            _keep(crew.lives, folder / "lives.json")
            span = history.Span(time.time() - began, time.time())
            try:
                _judge(crew, told_by, watched_by, span, report)
            except Exception as error:  # noqa: BLE001 - what is known by then is worth an hour
                report.problems.append(f"it was not judged: {type(error).__name__}: {error}")
        finally:
            stray = crew.close()
    report.problems += [f"a worker wrote: {line}" for line in stray]
    if not options.folder:
        shutil.rmtree(folder)
    return report


def _soak(
    options: argparse.Namespace, crew: Crew, told_by: Exporter, watched_by: Scraper, report: Report
) -> None:
    for rank in range(options.workers):
        crew.start(rank, always_fresh=rank == HOARDER)

    def pids() -> dict[str, int]:
        watched = {"exporter": told_by.pid, "Prometheus": watched_by.pid}
        return watched | {f"rank {rank}": crew.current[rank].pid for rank in VETERANS}

    settled = min(300.0, options.seconds / 3)
    with Scales(pids, min(5.0, options.seconds / 20)) as scales:
        began, spent = time.monotonic(), cpu_seconds(told_by.pid)
        Fate(crew, watched_by, options).rule(options.seconds)
        took = time.monotonic() - began
        report.exporter_cpu_percent = 100 * (cpu_seconds(told_by.pid) - spent) / took
    report.seconds = round(took, 1)
    report.calls_per_second = round(sum(b.calls("eager") for b in crew.books) / took, 1)
    threads = [
        threading.Thread(target=crew.end, args=(life, "exit", watched_by))
        for life in crew.current.values()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _weigh(scales, settled, report)


def _keep(lives: Sequence[Life], path: Path) -> None:
    """A line for each life, for whoever looks into a problem."""
    told = [
        {
            **{key: getattr(life, key) for key in ("rank", "number", "pid", "ended", "doubt")},
            "calls": life.book.calls("eager", "replayed"),
            "told": {" ".join(series): value for series, value in life.told.items()},
            "problems": life.problems,
        }
        for life in lives
    ]
    path.write_text("\n".join(map(json.dumps, told)) + "\n")


def _weigh(scales: Scales, settled: float, report: Report) -> None:
    served = scales.after("exporter", settled)
    report.exporter_mb_settled, report.exporter_mb_end = (
        round(each.memory / 1e6, 1) for each in (served[0], served[-1])
    )
    if report.exporter_mb_end > _GROWTH * report.exporter_mb_settled:
        report.problems.append("the exporter's memory grew")
    report.exporter_descriptors = _range([each.descriptors for each in served])
    report.load_average = _range([round(load, 1) for load in scales.loads])
    report.prometheus_mb_end = round(scales.weights["Prometheus"][-1].memory / 1e6, 1)
    for rank in VETERANS:
        weights = scales.after(f"rank {rank}", settled)
        report.workers_mb[f"rank {rank}"] = [
            round(each.memory / 1e6, 1) for each in (weights[0], weights[-1])
        ]
        report.workers_descriptors[f"rank {rank}"] = _range([each.descriptors for each in weights])


def _range(numbers: list[Any]) -> list[Any]:
    return [min(numbers), max(numbers)]


def _judge(
    crew: Crew, told_by: Exporter, watched_by: Scraper, span: history.Span, report: Report
) -> None:
    """Add up the books, and hold them against everything that was told."""
    lives = crew.lives
    for mode in ("eager", "captured", "replayed", "tuning"):
        setattr(report, f"calls_{mode}", sum(life.book.calls(mode) for life in lives))
    report.overflows = {a: sum(life.book.events(a) for life in lives) for a in ACTIONS}
    report.lives = len(lives)
    report.ends = dict(Counter(life.ended for life in lives))
    doubts = [life.doubt for life in lives]
    report.calls_in_doubt, report.most_in_doubt = sum(doubts), max(doubts)
    report.lives_in_doubt = sum(doubt > 0 for doubt in doubts)
    report.slowest_to_tell_s = round(max(life.seconds_to_tell for life in lives), 1)
    report.worst_delay_ms = max(life.book.late_ms for life in lives)
    report.problems += [f"{life.name}: {each}" for life in lives for each in life.problems]

    went = history.scrapes(watched_by, span)
    report.scrapes = {key: round(value, 4) for key, value in went._asdict().items()}
    report.scrapes_failed = went.failed
    found = history.judge(watched_by, lives, span)
    report.instants_checked, report.histograms_checked = found.instants, found.histograms
    report.calls_told_by_prometheus = found.calls
    report.problems += found.problems
    ran, told = report.calls_eager + report.calls_replayed, found.calls
    if not ran <= told <= ran + report.calls_in_doubt:
        report.problems.append(f"{ran:,} calls were made, Prometheus has {told:,.0f}")
    for name in NEVER:
        if most := history.ever(watched_by, name, span):
            report.problems.append(f"{name} came to {most:,.0f}")
    report.problems += [f"the exporter wrote: {line}" for line in told_by.other_lines()]
    report.problems += [f"Prometheus wrote: {line}" for line in watched_by.lines()]
    report.problems += _events(told_by, lives, report)


def _events(told_by: Exporter, lives: Sequence[Life], report: Report) -> list[str]:
    """Whether a line was written for each overflow and each death, and no other."""
    kinds: Counter[str] = Counter()
    by_rank: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in told_by.events():
        kinds[event["event"]] += event.get("count", 1)
        by_rank[event["rank"]].append(event)
    report.events_told = dict(kinds)
    problems = []
    born = {(life.rank, life.number): life.born for life in lives}
    for life in lives:
        until = born.get((life.rank, life.number + 1), math.inf)
        told = told_of_life(by_rank[str(life.rank)], life.born, until)
        made = Counter({"death": int(life.stays), "overflow": life.overflows})
        for (name, op, _), value in life.told.items():
            if name == "overflows_total":
                made[op] += int(value)
        problems += [
            f"{life.name}: {made[what]} of {what}, {told[what]} lines"
            for what in made
            if made[what] != told[what]
        ]
    if others := kinds.keys() - {"overflow", "death"}:
        problems.append(f"events that nobody made: {sorted(others)}")
    return problems


def main() -> int:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rate", type=float, default=20_000, help="calls per second, together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kill-every", type=float, default=10, help="seconds, on average")
    parser.add_argument("--group-every", type=float, default=600, help="seconds")
    parser.add_argument(
        "--nice", type=int, default=0, help="of the workers' session, where others are busy as well"
    )
    parser.add_argument("--json", type=Path, help="where to write the report")
    parser.add_argument("--folder", help="where to keep books, logs and Prometheus' data")
    options = parser.parse_args()
    if options.workers <= len(VETERANS):
        parser.error(f"--workers must be more than {len(VETERANS)}")
    if shutil.which("prometheus") is None:
        parser.error("prometheus is missing: apt-get install prometheus")
    report = run(options)
    if options.json:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n")
    print(table(report))
    return 1 if report.problems or report.scrapes_failed else 0


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    sys.exit(main())
