"""The main job without a GPU: the reported crash, seen coming, and the same traffic made to fit.

Eight worker processes make the reported deployment's calls (64 heads, DCP 8, steps of up to 12,288
tokens) with FlashInfer's own Python against its own launcher; a real exporter watches the board.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ws_guard import sizing
from ws_guard.invocation import invocation
from ws_guard.sizing import Call

from .crew import WORKERS, Crew, Exporter
from .stage import Say, Stage, prepare_stage
from .worker import HEADS

_ENDED = "\nended: its workers, its exporter and its board are gone"


def play(
    *,
    layout: str | None,
    python: str | None,
    listen: str,
    pause: int,
    once: bool,
    say: Say = print,
) -> int:
    """Play the demonstration; with `once` check it over HTTP and end. Returns 0, or 1 if it fails.

    `pause` is for how many seconds the crash stays on the status page before the second act.

    Raises `InputError` where no FlashInfer of the wanted layout is installed.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_like_ctrl_c(say))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ws_guard-demo-"))
        board = str(Path(folder) / "board")
        address = "127.0.0.1:0" if once else listen
        exporter = stack.enter_context(Exporter(board, address))
        stage = prepare_stage(os.path.expanduser(python or sys.executable), layout, folder, say)
        terminal = invocation("status", "--board", board)
        say(f"status page {exporter.url}/   in a terminal: {terminal}")
        checks = _Checks(exporter, say)
        before = stack.enter_context(Crew(stage, board, sizing.DEFAULT_WORKSPACE_BYTES))
        _first_act(before, checks, say)
        if pause:
            _intermission(pause, say)
        after = stack.enter_context(_second_crew(stage, board, checks, before, say))
        _second_act(after, checks, say)
        _summary(stage, before, checks, say)
        if not once:
            say(f"\nstatus page {exporter.url}/   metrics {exporter.url}/metrics   Ctrl-C ends it")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    if not once:
        say(_ENDED)
    return 0 if checks.all_passed else 1


@contextlib.contextmanager
def _ended_like_ctrl_c(say: Say) -> Iterator[None]:
    """SIGTERM and a closed terminal end the demonstration as Ctrl-C does: nothing stays behind."""
    signals = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    except KeyboardInterrupt:
        say(_ENDED)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _intermission(seconds: int, say: Say) -> None:
    """Time to look at the crash on the status page; a terminal's Enter ends it sooner."""
    if sys.stdin is not None and sys.stdin.isatty():
        say(f"\nlook at the status page now; Enter goes on, or {seconds} s do")
        select.select([sys.stdin], [], [], seconds)
    else:
        say(f"\nlook at the status page now; it goes on after {seconds} s")
        time.sleep(seconds)


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


def _first_act(crew: Crew, checks: _Checks, say: Say) -> None:
    size = sizing.DEFAULT_WORKSPACE_BYTES
    say(f"\n1. {WORKERS} workers with the default workspace of {size:,} bytes (394 MiB)")
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


def _peaks_match(peaks: list[dict[str, Any]], batch: int, refusal: str) -> bool:
    """Compare the exported slab with the size in FlashInfer's own error text."""
    return len(peaks) == WORKERS and all(
        peak["batch"] == batch and f"with size {peak['slabs']['softmax_stats']} and" in refusal
        for peak in peaks
    )


def _second_crew(stage: Stage, board: str, checks: _Checks, before: Crew, say: Say) -> Crew:
    workers = checks.exporter.health()["workers"]
    size = workers[0]["workspaces"][0]["planned"]["recommended_workspace_bytes"]
    before.stop()
    say(f"\n2. the same traffic with the recommended workspace of {size:,} bytes")
    return Crew(stage, board, size)


def _second_act(crew: Crew, checks: _Checks, say: Say) -> None:
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
