"""The demonstration as an on-call engineer meets it: scraped every 15 s, alerted on, resolved.

Five jobs, each with an exporter and a board of its own:

- ws-guard-demo: the demonstration's eight ranks, undersized and alive, then sized;
- ws-guard-killed: a rank that is killed at its first refused call, then its sized successor;
- ws-guard-sized: a rank whose plan fits and whose workspace is nearly full: nothing to say;
- ws-guard-overrun: a rank whose scratch did not fit;
- ws-guard-down: an exporter that goes away.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from places import ROOT
from servers import Prometheus, Receiver, alertmanager, exporter, prometheus, wait_for

from ws_guard import sizing
from ws_guard.demo.crew import WORKERS, Crew
from ws_guard.demo.stage import Stage, prepare_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO, KILLED, SIZED = "ws-guard-demo", "ws-guard-killed", "ws-guard-sized"
OVERRUN, DOWN = "ws-guard-overrun", "ws-guard-down"
#: What each job has to be told of in the first act, and what must be over in the second.
FIRING = (
    ("WsGuardPlannedOverflow", DEMO),
    ("WsGuardOverflow", DEMO),
    ("WsGuardOverflow", KILLED),
    ("WsGuardWorkerGone", KILLED),
    ("WsGuardOverrun", OVERRUN),
)
RESOLVED = FIRING[:4]


class Played(NamedTuple):
    """What is left of the play: moments are seconds since the epoch."""

    prometheus: Prometheus
    receiver: Receiver
    began: float
    undersized: float
    ended: float


@contextmanager
def play(folder: Path, newest_python: str) -> Iterator[Played]:
    """Both acts; Prometheus and Alertmanager stay until the block ends."""
    with ExitStack() as stack:
        stage = prepare_stage(sys.executable, "B", str(folder), print)
        receiver = stack.enter_context(Receiver())
        expected = {DEMO: str(WORKERS)}
        targets = {
            job: stack.enter_context(
                exporter(folder / job, WS_GUARD_EXPECTED_WORKERS=expected.get(job, "1"))
            )
            for job in (DEMO, KILLED, SIZED, OVERRUN)
        }
        leaving = stack.enter_context(ExitStack())
        targets[DOWN] = leaving.enter_context(exporter(folder / DOWN))
        told = stack.enter_context(alertmanager(folder, receiver))
        server = stack.enter_context(prometheus(folder, targets, told))
        began = time.time()

        stack.enter_context(_worker(stage, "sized", folder / SIZED, newest_python))
        stack.enter_context(_worker(stage, "overrun", folder / OVERRUN))
        crew = stack.enter_context(Crew(stage, str(folder / DEMO), sizing.DEFAULT_WORKSPACE_BYTES))
        crew.attach()
        crew.play(print)
        _let_die(stage, folder / KILLED)
        for name, job in FIRING:
            wait_for(f"{name} of {job}", lambda n=name, j=job: receiver.heard("firing", n, j))
        # A rate needs two scrapes.
        wait_for("two scrapes of calls", lambda: _has_rate(server))
        undersized = time.time()

        leaving.close()
        crew.stop()
        stack.enter_context(_worker(stage, "successor", folder / KILLED))
        after = stack.enter_context(Crew(stage, str(folder / DEMO), _recommended()))
        after.attach()
        after.play(print)
        for name, job in RESOLVED:
            wait_for(
                f"end of {name} of {job}", lambda n=name, j=job: receiver.heard("resolved", n, j)
            )
        wait_for(
            "WsGuardExporterDown", lambda: receiver.heard("firing", "WsGuardExporterDown", DOWN)
        )
        planned = 'min(fleet:ws_guard_margin_ratio:min{basis="planned"}) > 0'
        wait_for("every planned margin recorded above 0", lambda: server.query(planned))
        yield Played(server, receiver, began, undersized, time.time())


def _recommended() -> int:
    """What the plan of the demonstration asks for: 394 MiB and the slab of 16,384 rows."""
    return sizing.DEFAULT_WORKSPACE_BYTES + 8 * 64 * 16_384 * 256 + (1 << 20)


def _has_rate(server: Prometheus) -> bool:
    rates = server.query("rate(ws_guard_native_calls_total[1m])")
    return {DEMO, SIZED, OVERRUN} <= {rate["metric"]["job"] for rate in rates}


def _command(stage: Stage, part: str, board: Path, python: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, str(Path(__file__).parent / "worker.py"), part, str(board)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=stage.environment | {"PYTHONPATH": str(ROOT)},
    )


@contextmanager
def _worker(stage: Stage, part: str, board: Path, python: str = sys.executable) -> Iterator[None]:
    """A worker that has played its part and stays until the block ends."""
    process = _command(stage, part, board, python)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "played\n", f"the part {part} was not played"
        yield
    finally:
        process.communicate()


def _let_die(stage: Stage, board: Path) -> None:
    process = _command(stage, "killed", board, sys.executable)
    process.communicate()
    assert process.returncode == -9
