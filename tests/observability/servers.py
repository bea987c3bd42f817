"""Real Prometheus, Alertmanager and exporters on loopback ports, and a receiver of alerts."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from places import ROOT, RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE_SECONDS = 100


class Alert(NamedTuple):
    """What Alertmanager told of an alert: `status` is firing or resolved."""

    status: str
    name: str
    job: str


def wait_for(what: str, holds: Callable[[], Any]) -> Any:
    """Poll until something is true; the test fails where it never is."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.2)
    return found


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fetch(url: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@contextmanager
def running(*command: str, log: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program until the block ends; what it says goes into a file."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def exporter(board: Path, **environ: str) -> Iterator[str]:
    """`ws-guard serve` over a board; yields its address."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "ws_guard", "serve", "--board", str(board)]
    log = board.parent / f"{board.name}.log"
    with running(*command, "--listen", address, log=log, **environ):
        wait_for(f"exporter of {board.name}", lambda: fetch(f"http://{address}/livez")[0] == 200)
        yield address


class Receiver:
    """A webhook of Alertmanager that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Alert] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    labels = alert["labels"]
                    name, job = labels["alertname"], labels.get("job", "")
                    receiver.told.append(Alert(alert["status"], name, job))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def heard(self, status: str, name: str, job: str) -> bool:
        """Whether it was told so."""
        return Alert(status, name, job) in self.told


@contextmanager
def alertmanager(folder: Path, receiver: Receiver) -> Iterator[str]:
    """Alertmanager that passes everything on at once; yields its address."""
    config = folder / "alertmanager.yml"
    quick = {"group_wait": "0s", "group_interval": "1s", "group_by": ["alertname", "job"]}
    webhook = {"url": receiver.url, "send_resolved": True}
    config.write_text(
        yaml.safe_dump(
            {
                "route": {"receiver": "test", **quick},
                "receivers": [{"name": "test", "webhook_configs": [webhook]}],
            }
        )
    )
    address = f"127.0.0.1:{free_port()}"
    with running(
        "prometheus-alertmanager",
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
        log=folder / "alertmanager.log",
    ):
        wait_for("Alertmanager", lambda: fetch(f"http://{address}/-/ready")[0] == 200)
        yield address


class Prometheus(NamedTuple):
    """A running Prometheus."""

    url: str

    def ask(self, path: str, **parameters: object) -> Any:
        """The data of an answer of its API; the test fails where it answers with an error."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        status, body = fetch(f"{self.url}/api/v1/{path}?{query}")
        assert status == 200, body
        return json.loads(body)["data"]

    def query(self, expr: str, at: float | None = None) -> list[Any]:
        """The result of an instant query."""
        when = {} if at is None else {"time": at}
        found: list[Any] = self.ask("query", query=expr, **when)["result"]
        return found


@contextmanager
def prometheus(folder: Path, targets: dict[str, str], alerts_to: str) -> Iterator[Prometheus]:
    """Prometheus that scrapes {job: address} every 15 s with our rules, their `for` cut short."""
    rules = folder / "rules.yml"
    rules.write_text(re.sub(r"(?m)^( +for:) \S+$", r"\1 0s", RULES.read_text()))
    config = folder / "prometheus.yml"
    manager = {"static_configs": [{"targets": [alerts_to]}]}
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "15s", "evaluation_interval": "5s"},
                "rule_files": [str(rules)],
                "alerting": {"alertmanagers": [manager]},
                "scrape_configs": [
                    {"job_name": job, "static_configs": [{"targets": [target]}]}
                    for job, target in targets.items()
                ],
            }
        )
    )
    address = f"127.0.0.1:{free_port()}"
    with running(
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={address}",
        "--rules.alert.resend-delay=2s",
        # The tests' own pages ask it.
        "--web.cors.origin=.*",
        log=folder / "prometheus.log",
    ):
        wait_for("Prometheus", lambda: fetch(f"http://{address}/-/ready")[0] == 200)
        yield Prometheus(f"http://{address}")
