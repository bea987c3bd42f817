"""500 probe requests at any time, by real sockets; at length and with times: `benchmarks.rush`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from doors import exporter_process, wait_until
from slot_worker import FIXED_PLAN

from benchmarks.clients import Crowd
from benchmarks.processes import Process

if TYPE_CHECKING:
    from conftest import Attach

    from ws_guard.board import Board


CLIENTS = 500
#: Long enough for some thousand requests on a slow machine; a probe comes once in some seconds.
SECONDS = 1.5
#: Of 500 clients that come again, when the first 500 have left: what an allocator may keep.
MOST_GROWTH_BYTES = 4 << 20


@pytest.mark.parametrize("fresh", [True, False])
def test_five_hundred_probes_at_a_time(attach: Attach, board: Board, fresh: bool) -> None:
    """All are answered; then the exporter holds what it held before, and says nothing."""
    for rank in range(8):
        attach(rank=str(rank), planned=[FIXED_PLAN]).call(3_000)
    with exporter_process({"WS_GUARD_BOARD": board.path}) as (process, url):
        server = Process(process.pid, int(url.rpartition(":")[2]))
        assert httpx.get(f"{url}/readyz").text == "ok\n"
        held = server.open_files()
        memory = []
        for _ in range(2):
            crowd = Crowd(server.port, "/readyz", b"ok\n", CLIENTS, fresh=fresh)
            tally = crowd.ask(SECONDS)
            assert not tally.errors
            assert len(tally.latencies) >= CLIENTS
            wait_until(lambda: server.open_files() <= held)
            memory.append(server.memory_bytes())
        assert memory[1] - memory[0] < MOST_GROWTH_BYTES
        assert httpx.get(f"{url}/livez").status_code == 200
        process.terminate()
        _, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (0, "")


def test_what_goes_wrong_is_counted(board: Board) -> None:
    """A crowd that sees no error proves nothing unless it can see one."""
    with exporter_process({"WS_GUARD_BOARD": board.path}) as (process, url):
        port = int(url.rpartition(":")[2])
        # No worker: not ready, and with a body that nobody expects.
        tally = Crowd(port, "/readyz", b"ok\n", 5, fresh=True).ask(0)
        assert tally.errors == {"HTTP/1.1 503 Service Unavailable not ready: workers_reporting": 5}
        tally = Crowd(port, "/livez", b"other\n", 5, fresh=True).ask(0)
        assert tally.errors == {"half an answer": 5}
        process.kill()
        process.wait()
    tally = Crowd(port, "/livez", b"ok\n", 5, fresh=True).ask(0)
    assert tally.errors == {"ECONNREFUSED": 5}
