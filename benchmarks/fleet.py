"""A fleet under a real Prometheus: `python -m benchmarks.fleet [--json]`.

One Prometheus scrapes 128 exporters of 8 ranks each over loopback, at the shipped interval of 15
seconds, and evaluates the shipped rules. The exporters are the real server, each with a port, a
board, a thread and an event loop of its own; one process holds all of them, and the slots of their
workers, each of which makes a call of another shape every second. Every rank has two ops, two
workspaces on all three bases, 200 shapes. The figures are Prometheus' own, from its /metrics.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from ws_guard.board import Board
from ws_guard.exporter.server import Exporter
from ws_guard.settings import read_settings

from .exporter import call_all
from .scrape import busy_worker

EXPORTERS, RANKS = 128, 8
INTERVAL_SECONDS = 15
#: Two rounds of scrapes to settle, then so many to measure.
SETTLE_SECONDS, MEASURE_SECONDS = 60, 60
RULES = Path("dashboards/prometheus/ws-guard.rules.yml")
_SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)

Sheet: TypeAlias = "dict[tuple[str, str], float]"


def serve_fleet(folder: str) -> None:
    """Serve all exporters until killed; their ports are written to `folder`/ports."""
    slots, ports = [], []
    for number in range(EXPORTERS):
        board = Board(f"{folder}/{number}")
        slots += [busy_worker(board, rank) for rank in range(RANKS)]
        environment = {"WS_GUARD_BOARD": board.path, "WS_GUARD_LISTEN": "127.0.0.1:0"}
        one = Exporter(read_settings(environment)[0])
        one.start()
        ports.append(one.url.rpartition(":")[2])
    Path(f"{folder}/ports").write_text("\n".join(ports))
    while True:
        call_all(slots)
        time.sleep(1)


def configuration(ports: list[str], rules: Path) -> str:
    """Prometheus' configuration; its JSON is YAML as well."""
    return json.dumps(
        {
            "global": {
                "scrape_interval": f"{INTERVAL_SECONDS}s",
                "evaluation_interval": f"{INTERVAL_SECONDS}s",
            },
            "rule_files": [str(rules.resolve())],
            "scrape_configs": [
                {
                    "job_name": "ws-guard",
                    "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
                }
            ],
        }
    )


def fetch(url: str) -> str:
    """The body of an answer."""
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - loopback
        text: str = answer.read().decode()
        return text


def sheet_of(base: str) -> Sheet:
    """What Prometheus tells of itself."""
    found = _SERIES.findall(fetch(f"{base}/metrics"))
    return {(name, labels): float(value) for name, labels, value in found}


def total(sheet: Sheet, name: str) -> float:
    """A metric over all its labels, which differ between releases of Prometheus."""
    return sum(value for (metric, _), value in sheet.items() if metric == name)


def ask(base: str, expression: str) -> float:
    """The one value of an expression."""
    query = quote(expression)
    result = json.loads(fetch(f"{base}/api/v1/query?query={query}"))["data"]["result"]
    return float(result[0]["value"][1])


def figures(base: str) -> dict[str, float]:
    """Every figure, over the measured minute."""
    before = sheet_of(base)
    time.sleep(MEASURE_SECONDS)
    after = sheet_of(base)

    def grown(name: str) -> float:
        return (total(after, name) - total(before, name)) / MEASURE_SECONDS

    rules = {
        labels.rpartition(";")[2].rstrip('"'): seconds
        for (name, labels), seconds in after.items()
        if name == "prometheus_rule_group_last_duration_seconds"
    }
    series = ask(base, "sum(scrape_samples_scraped)")
    return {
        "exporters_up": ask(base, "sum(up)"),
        "series_of_exporters": series,
        "series_per_rank": series / (EXPORTERS * RANKS),
        "head_series": total(after, "prometheus_tsdb_head_series"),
        "samples_per_second": grown("prometheus_tsdb_head_samples_appended_total"),
        "scrape_ms_mean": 1000 * ask(base, "avg(scrape_duration_seconds)"),
        "scrape_ms_most": 1000 * ask(base, "max(scrape_duration_seconds)"),
        **{f"rules_{group}_ms": 1000 * seconds for group, seconds in rules.items()},
        "prometheus_cpu_percent": 100 * grown("process_cpu_seconds_total"),
        "prometheus_memory_mb": total(after, "process_resident_memory_bytes") / 1e6,
    }


def run(rules: Path) -> dict[str, float]:
    """Start everything, measure, stop."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as boards,
        tempfile.TemporaryDirectory() as data,
    ):
        fleet = subprocess.Popen([sys.executable, "-m", _module(), "--serve", boards])  # noqa: S603 - ourselves
        prometheus = None
        try:
            told = Path(f"{boards}/ports")
            while not told.exists() and fleet.poll() is None:
                time.sleep(0.5)
            config = Path(f"{data}/prometheus.yml")
            config.write_text(configuration(told.read_text().split(), rules))
            listen = "127.0.0.1:19490"
            prometheus = subprocess.Popen(  # noqa: S603 - the real one
                [
                    *("prometheus", f"--config.file={config}", f"--web.listen-address={listen}"),
                    *(f"--storage.tsdb.path={data}/tsdb", "--log.level=error"),
                ]
            )
            time.sleep(SETTLE_SECONDS)
            return figures(f"http://{listen}")
        finally:
            for process in (prometheus, fleet):
                if process is not None:
                    process.kill()
                    process.wait()


def _module() -> str:
    return __spec__.name if __spec__ else "benchmarks.fleet"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rules", type=Path, default=RULES)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.serve:
        serve_fleet(wanted.serve)
        return
    if shutil.which("prometheus") is None:
        raise SystemExit("fleet: prometheus is missing: apt-get install prometheus")
    if not wanted.rules.exists():
        raise SystemExit(f"fleet: there is no {wanted.rules}: pass --rules FILE")
    result = run(wanted.rules)
    if wanted.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name:<34}{value:>14,.1f}")


if __name__ == "__main__":
    main()
