"""Who looks at the soak's board: `ws-guard serve`, and a real Prometheus that scrapes it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "observability"))

from book import Bounds, Series
from places import RULES
from servers import Prometheus, fetch, free_port, running, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PREFIX = "ws_guard_"
#: What stays once a worker is dead; the histogram leaves, as docs/METRICS.md says.
LASTING = ("native_calls_total", "overflows_total", "overruns_total")
COUNTED = (*LASTING, "batch_size_bucket", "batch_size_count", "batch_size_sum")
#: The label of each series besides engine, rank and op.
_OWN_LABELS = ("mode", "action", "le")
_LINE = re.compile(rf"^{PREFIX}(\w+)\{{(.*)\}} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SCRAPE_SECONDS = 1
#: Answers that a busy machine may owe.
_TRIES = 3

Told = dict[Series, float]
T = TypeVar("T")


class Page(NamedTuple):
    """What /metrics tells: by rank the counts, whether the worker is up, and its attachment."""

    counts: dict[str, Told]
    up: dict[str, float]
    start: dict[str, float]


def series_of(name: str, labels: Mapping[str, str]) -> Series:
    """A series by its name without the prefix, its op, and its own label."""
    own = next((labels[label] for label in _OWN_LABELS if label in labels), "")
    return name, labels.get("op", ""), own


def lasting(of: Mapping[Series, T]) -> dict[Series, T]:
    """The series of a dead worker."""
    return {series: value for series, value in of.items() if series[0] in LASTING}


def differences(account: Mapping[Series, Bounds], told: Mapping[Series, float]) -> list[str]:
    """Where what is told is not what the account says; a series that is not told is 0."""
    wrong = [
        f"{' '.join(series)}: told {told.get(series, 0):,.0f}, made {bounds.least:,}"
        + (f" to {bounds.most:,}" if bounds.most > bounds.least else "")
        for series, bounds in account.items()
        if not bounds.hold(told.get(series, 0))
    ]
    return wrong + [f"{' '.join(series)}: nobody made it" for series in told.keys() - account]


def told_of_life(
    events: Iterable[Mapping[str, Any]], born: float, until: float = math.inf
) -> Counter[str]:
    """How many events of each kind, and overflows of each op, were told of one life of a rank.

    `events` are those of the rank. Lives are told apart by their time (epoch seconds): within an
    hour process ids come again.
    """
    told: Counter[str] = Counter()
    for event in events:
        if born <= datetime.fromisoformat(event["time"]).timestamp() < until:
            told[event["event"]] += event.get("count", 1)
            told[event.get("op", "")] += event.get("count", 1)
    return told


class Exporter(NamedTuple):
    """A running exporter."""

    address: str
    pid: int
    log: Path

    def page(self) -> Page:
        """Its /metrics, parsed."""
        text = self._get("/metrics")
        counts: dict[str, Told] = {}
        alone: dict[str, dict[str, float]] = {
            "worker_up": {},
            "worker_start_timestamp_seconds": {},
        }
        for name, inner, value in _LINE.findall(text):
            if name in COUNTED:
                labels = dict(_LABEL.findall(inner))
                rank = counts.setdefault(labels["rank"], {})
                rank[series_of(name, labels)] = float(value)
            elif name in alone:
                alone[name][dict(_LABEL.findall(inner))["rank"]] = float(value)
        return Page(counts, alone["worker_up"], alone["worker_start_timestamp_seconds"])

    def worker(self, rank: int) -> dict[str, Any] | None:
        """What /health tells of a worker."""
        workers = json.loads(self._get("/health"))["workers"]
        found: dict[str, Any] | None = next((w for w in workers if w["rank"] == str(rank)), None)
        return found

    def _get(self, path: str) -> str:
        for _ in range(_TRIES):
            status, text = fetch(f"http://{self.address}{path}")
            if status in (200, 503):
                return text
        raise RuntimeError(f"{path} answered {status}: {text}")

    def events(self, rank: int | None = None) -> list[dict[str, Any]]:
        """The JSON lines that it wrote, of one rank or all."""
        own = "{" if rank is None else f'"rank": "{rank}"'
        lines = [line for line in self._lines() if line.startswith("{") and own in line]
        return [json.loads(line) for line in lines]

    def other_lines(self) -> list[str]:
        """What else it wrote, but for where it listens."""
        others = [line for line in self._lines() if not line.startswith("{")]
        return [line for line in others if not line.startswith("ws-guard exporter on ")]

    def _lines(self) -> list[str]:
        return self.log.read_text().splitlines()


class Scraper(NamedTuple):
    """A running Prometheus."""

    server: Prometheus
    pid: int
    log: Path

    def last(self, rank: int) -> Told:
        """The counts of a rank in the last scrape."""
        names = "|".join(PREFIX + name for name in COUNTED)
        found = self.server.query(f'{{rank="{rank}",__name__=~"{names}"}}')
        return {
            series_of(each["metric"]["__name__"].removeprefix(PREFIX), each["metric"]): float(
                each["value"][1]
            )
            for each in found
        }

    def lines(self) -> list[str]:
        """What it warned of."""
        return [line for line in self.log.read_text().splitlines() if "level=info" not in line]


def _apart(nice: int) -> tuple[str, ...]:
    """Before a command whose session is weighed by itself."""
    return ("setsid", "nice", "-n", str(nice)) if nice else ()


def weigh_session(pid: int, nice: int) -> None:
    """Give a process's session its niceness: Linux weighs sessions before it weighs processes."""
    if nice:
        with suppress(OSError):  # a kernel that does not
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))


@contextmanager
def exporter(board: str, workers: int, folder: Path, nice: int) -> Iterator[Exporter]:
    """`ws-guard serve` over the board, as users run it."""
    address = f"127.0.0.1:{free_port()}"
    command = (sys.executable, "-m", "ws_guard", "serve", "--board", board, "--listen", address)
    log = folder / "exporter.log"
    with running(
        *_apart(nice), *command, log=log, WS_GUARD_EXPECTED_WORKERS=str(workers)
    ) as process:
        wait_for("exporter", lambda: fetch(f"http://{address}/livez")[0] == 200)
        weigh_session(process.pid, nice)
        yield Exporter(address, process.pid, log)


@contextmanager
def scraper(target: str, folder: Path, nice: int) -> Iterator[Scraper]:
    """Prometheus that scrapes the exporter every second, and evaluates the shipped rules."""
    config, log = folder / "prometheus.yml", folder / "prometheus.log"
    every = f"{_SCRAPE_SECONDS}s"
    job = {"job_name": "soak", "static_configs": [{"targets": [target]}]}
    config.write_text(
        json.dumps(
            {
                "global": {
                    "scrape_interval": every,
                    "scrape_timeout": every,
                    "evaluation_interval": "15s",
                },
                "rule_files": [str(RULES)],
                "scrape_configs": [job],
            }
        )
    )
    address = f"127.0.0.1:{free_port()}"
    command = (
        *("prometheus", f"--config.file={config}", f"--web.listen-address={address}"),
        *(f"--storage.tsdb.path={folder / 'tsdb'}", "--storage.tsdb.retention.time=1d"),
    )
    with running(*_apart(nice), *command, log=log) as process:
        wait_for("Prometheus", lambda: fetch(f"http://{address}/-/ready")[0] == 200)
        weigh_session(process.pid, nice)
        yield Scraper(Prometheus(f"http://{address}"), process.pid, log)
