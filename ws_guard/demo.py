"""The main job without a GPU: the reported crash, seen coming, and the same traffic made to fit.

Eight worker processes make the reported deployment's calls (64 heads, DCP 8, steps of up to 12,288
tokens) with FlashInfer's own Python against its own launcher; a real exporter watches the board.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from . import sizing
from .demo_worker import HEADS, PREFILL_STEPS
from .sizing import Call, InputError

WORKERS = 8
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]

Say = Callable[[str], None]


class Stage(NamedTuple):
    """What the demonstration runs on: the interpreter with FlashInfer, and what that carves by."""

    python: str
    release: str
    layout: str
    #: The compiled launcher; None where the stand-in serves.
    library: str | None


def run(
    *, layout: str | None, python: str | None, listen: str, once: bool, say: Say = print
) -> int:
    """Play the demonstration; with `once` check it over HTTP and end. Returns 0, or 1 if it fails.

    Raises `InputError` where no FlashInfer of the wanted layout is installed.
    """
    with contextlib.ExitStack() as stack:
        stage = _prepare(python or sys.executable, layout, say)
        board = stack.enter_context(tempfile.TemporaryDirectory(prefix="ws_guard-demo-"))
        exporter = stack.enter_context(_exporter(board, "127.0.0.1:0" if once else listen))
        say(f"exporter on {exporter.url}")
        checks = _Checks(exporter, say)
        before = _first_act(stage, board, checks, say)
        after = _second_act(stage, board, checks, say, before)
        stack.callback(after.stop)
        _summary(stage, before, checks, say)
        if once:
            return 0 if checks.all_passed else 1
        say(f"\nstatus page {exporter.url}/   metrics {exporter.url}/metrics   Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            exporter.process.wait()
        return 0 if checks.all_passed else 1


# -- preparation ----------------------------------------------------------------------------------

_DESCRIBE = """
import json
from ws_guard import contract, launcher
try:
    found = contract.installed_contract()
    import torch
except (LookupError, ImportError) as error:
    raise SystemExit(f"{error}")
if found.layout is None:
    raise SystemExit(f"FlashInfer {found.release} carves in no known way: {found.reason}")
library, why = None, ""
try:
    library = str(launcher.build(launcher.installed_flashinfer_root()))
except (launcher.CompilerMissing, launcher.BuildFailed) as error:
    why = str(error).splitlines()[0]
print(json.dumps([found.release, found.layout.name, library, why]))
"""


def _prepare(python: str, layout: str | None, say: Say) -> Stage:
    say("compiling the installed FlashInfer's launcher for the CPU (once, some seconds) ...")
    command = [python, "-c", _DESCRIBE]
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the user named
            command, capture_output=True, text=True, env=_environment(), check=False
        )
    except OSError as error:
        raise InputError(f"--python {python}: {error.strerror}; name an interpreter") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it ended"
        raise InputError(
            f"the demo needs torch and FlashInfer ({reason}): run make demo, "
            "or pip install 'ws-guard[flashinfer]'"
        )
    release, found, library, why = json.loads(done.stdout.splitlines()[-1])
    if layout is not None and layout != found:
        raise InputError(
            f"FlashInfer {release} carves by layout {found}, not {layout}: "
            "pass --python of an environment with another release, or make demo LAYOUT=C"
        )
    native = "its real launcher" if library else f"a stand-in for its launcher ({why})"
    say(f"FlashInfer {release}, layout {found}: its real Python on {native}")
    return Stage(python, release, found, library)


def _environment() -> dict[str, str]:
    """The environment of the children: this ws_guard first, and none of its settings inherited."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("WS_GUARD_")}
    return {**inherited, "PYTHONPATH": str(_PACKAGE_ROOT)}


# -- processes ------------------------------------------------------------------------------------


class Exporter(NamedTuple):
    """A running exporter process and where it answers."""

    process: subprocess.Popen[str]
    url: str

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


@contextlib.contextmanager
def _exporter(board: str, listen: str) -> Iterator[Exporter]:
    process = subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-m", "ws_guard", "serve", "--board", board, "--listen", listen],
        stderr=subprocess.PIPE,
        text=True,
        env={**_environment(), "WS_GUARD_EXPECTED_WORKERS": str(WORKERS)},
    )
    try:
        assert process.stderr is not None  # noqa: S101 - it was asked for
        first = process.stderr.readline()
        if "http" not in first:
            last = (first + process.stderr.read()).strip().splitlines()[-1:]
            raise InputError("".join(last).removeprefix("ws-guard: ") or "the exporter ended")
        yield Exporter(process, first.split(" on ", 1)[1].split(",")[0].strip())
    finally:
        process.terminate()
        process.communicate()


class Crew:
    """The eight worker processes of one act, behind the process that forked them."""

    def __init__(self, stage: Stage, board: str, workspace_bytes: int) -> None:
        command = [stage.python, "-m", "ws_guard.demo_worker", "--board", board]
        command += ["--workers", str(WORKERS), "--workspace-bytes", str(workspace_bytes)]
        if stage.library:
            command += ["--library", stage.library]
        self._process = subprocess.Popen(  # noqa: S603 - ourselves, under the interpreter named
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
        )
        self._refusals: dict[str, list[str | None]] = {}
        #: Text of a refusal, by step.
        self.refused: dict[int, str] = {}

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


# -- the two acts ---------------------------------------------------------------------------------


class _Checks:
    """What the exporter must say, asked over HTTP until it does."""

    def __init__(self, exporter: Exporter, say: Say) -> None:
        self.exporter = exporter
        self.all_passed = True
        self._say = say

    def expect(self, what: str, holds: Callable[[], bool]) -> None:
        """Poll until `holds`, and say how it went."""
        deadline = time.monotonic() + 15
        while not (passed := holds()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.all_passed &= passed
        self._say(f"  [{'ok' if passed else 'FAILED'}] {what}")

    def readyz(self, status: int, *texts: str) -> bool:
        """Whether /readyz?verbose answers with a status and holds every text."""
        code, body = self.exporter.get("/readyz?verbose")
        return code == status and all(text in body for text in texts)

    def overflows(self) -> int:
        """All overflows that /metrics counts."""
        _, body = self.exporter.get("/metrics")
        lines = [line for line in body.splitlines() if line.startswith("ws_guard_overflows_total{")]
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)

    def peaks(self) -> list[dict[str, Any]]:
        """The peak of every workspace of every live worker."""
        workers = self.exporter.health()["workers"]
        spaces = [space for worker in workers if worker["alive"] for space in worker["workspaces"]]
        return [space["peak"] for space in spaces if space.get("peak")]


def _first_act(stage: Stage, board: str, checks: _Checks, say: Say) -> Crew:
    size = sizing.DEFAULT_WORKSPACE_BYTES
    say(f"\n1. {WORKERS} workers with the default workspace of {size:,} bytes (394 MiB)")
    crew = Crew(stage, board, size)
    crew.attach()
    checks.expect(
        "not ready before the first request: the planned step does not fit",
        lambda: checks.readyz(503, "[-]planned_fits failed", "[+]workers_reporting ok"),
    )
    crew.play(say)
    largest = max(crew.refused, default=0)
    expected = WORKERS * len(crew.refused)
    checks.expect(
        f"every refused step is counted: {expected} overflows",
        lambda: bool(expected) and checks.overflows() == expected,
    )
    checks.expect("not ready: [-]no_overflow", lambda: checks.readyz(503, "[-]no_overflow failed"))
    checks.expect(
        f"the peak of every rank is the step of {largest:,} tokens, its slab the launcher's number",
        lambda: _peaks_match(checks.peaks(), largest, crew.refused.get(largest, "")),
    )
    return crew


def _peaks_match(peaks: list[dict[str, Any]], batch: int, refusal: str) -> bool:
    """Compare the exported slab with the size in FlashInfer's own error text."""
    return len(peaks) == WORKERS and all(
        peak["batch"] == batch and f"with size {peak['slabs']['softmax_stats']} and" in refusal
        for peak in peaks
    )


def _second_act(stage: Stage, board: str, checks: _Checks, say: Say, before: Crew) -> Crew:
    workers = checks.exporter.health()["workers"]
    size = workers[0]["workspaces"][0]["planned"]["recommended_workspace_bytes"]
    before.stop()
    say(f"\n2. the same traffic with the recommended workspace of {size:,} bytes")
    crew = Crew(stage, board, size)
    crew.attach()
    crew.play(say)
    checks.expect("ready", lambda: checks.readyz(200, "[+]planned_fits ok", "[+]no_overflow ok"))
    checks.expect("nothing refused", lambda: not crew.refused and checks.overflows() == 0)
    checks.expect(
        "every margin is positive",
        lambda: (
            len(peaks := checks.peaks()) == WORKERS and all(p["margin_bytes"] > 0 for p in peaks)
        ),
    )
    return crew


def _summary(stage: Stage, before: Crew, checks: _Checks, say: Say) -> None:
    first = min(before.refused, default=None)
    call = Call("decode", HEADS, 1, lse=True)
    threshold = sizing.overflow_threshold_batch(
        call, sizing.LAYOUTS[stage.layout], sizing.DEFAULT_WORKSPACE_BYTES
    )
    say(f"\nFlashInfer {stage.release}, layout {stage.layout}, {HEADS} heads, LSE, 394 MiB:")
    if first is None:
        say("  no step was refused")
        return
    say(f"  first refused step: {first:,} tokens (threshold {threshold:,})")
    say(f"  FlashInfer's words: {before.refused[first]}")
    say(f"  {'all checks passed' if checks.all_passed else 'SOME CHECKS FAILED'}")
