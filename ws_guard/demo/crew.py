"""The processes of the demonstration: eight workers, and the exporter that watches them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from typing import Any

from ws_guard.settings import require_settings

from .stage import Say, Stage
from .worker import PREFILL_STEPS

WORKERS = 8


class Exporter:
    """The exporter, serving from a thread of this process, and its HTTP client."""

    def __init__(self, board: str, listen: str) -> None:
        from ws_guard.exporter import events, refresh, server

        options = {
            "WS_GUARD_BOARD": board,
            "WS_GUARD_LISTEN": listen,
            "WS_GUARD_EXPECTED_WORKERS": str(WORKERS),
        }
        settings = require_settings(options)
        # The demonstration tells the story itself: the event lines would drown it.
        log = events.EventLog(io.StringIO())
        self._server = server.Exporter(settings, refresh.board_refresher(settings, log))

    def __enter__(self) -> Exporter:
        self._server.start()
        self.url = self._server.url
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a route."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 - ours
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def health(self) -> dict[str, Any]:
        """The body of /health."""
        body: dict[str, Any] = json.loads(self.get("/health")[1])
        return body


class Crew:
    """The eight worker processes of one act, behind the process that forked them."""

    def __init__(self, stage: Stage, board: str, workspace_bytes: int) -> None:
        command = [stage.python, "-m", "ws_guard.demo.worker", "--board", board]
        command += ["--workers", str(WORKERS), "--workspace-bytes", str(workspace_bytes)]
        if stage.library:
            command += ["--library", stage.library]
        self._process = subprocess.Popen(  # noqa: S603 - ourselves, under the interpreter named
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=stage.environment,
            # Ctrl-C is for us: workers end when their standard input does, even if we are killed.
            start_new_session=True,
        )
        self._refusals: dict[str, list[str | None]] = {}
        #: Text of a refusal, by step.
        self.refused: dict[int, str] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._process.poll() is None:
            # Interrupted: the workers may be anywhere, and have nothing to lose.
            os.killpg(self._process.pid, signal.SIGKILL)
        self.stop()

    def attach(self) -> None:
        """Wait until every worker is on the board."""
        self._collect("attached")

    def play(self, say: Say) -> None:
        """Follow the steps of all workers to their end."""
        for rows in PREFILL_STEPS:
            refusals = [text for text in self._collect(str(rows)) if text]
            if refusals:
                self.refused[rows] = refusals[0]
            outcome = f"refused on {len(refusals)} ranks" if refusals else "done"
            say(f"  step of {rows:>6,} tokens: {outcome}")
        self._collect("finished")

    def stop(self) -> None:
        """End the workers: their standard input closes."""
        if self._process.poll() is None:
            self._process.communicate()

    def _collect(self, what: str) -> list[str | None]:
        """One event of this name from every worker; others are kept for later."""
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        while len(self._refusals.get(what, ())) < WORKERS:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"the demo workers ended with code {self._process.wait()}")
            event = json.loads(line)
            self._refusals.setdefault(event["what"], []).append(event["refused"])
        return self._refusals[what]
