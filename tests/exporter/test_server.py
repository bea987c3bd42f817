"""The exporter as a server: real sockets, real signals, real deaths."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import httpx
import pytest
from doors import PATIENCE, SERVE, exporter_process, wait_until

from ws_guard.exporter.events import EventLog
from ws_guard.exporter.listening import listen
from ws_guard.exporter.refresh import Refresher
from ws_guard.exporter.server import Exporter, ServeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from conftest import Attach, HangingWatch, Start

    from ws_guard.board import Board
    from ws_guard.settings import Settings

    Serve: TypeAlias = Callable[..., AbstractContextManager[tuple[subprocess.Popen[str], str]]]


@pytest.fixture
def serve(board: Board) -> Serve:
    """`serve()`: an exporter as a process of its own, over a board that is there."""
    board.prepare()
    return lambda script=SERVE: exporter_process({"WS_GUARD_BOARD": board.path}, script)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    return process.stderr.readline()


def test_a_whole_life_over_http(spawn: Callable[..., subprocess.Popen[str]], start: Start) -> None:
    exporter = start()

    def up() -> list[str]:
        text = httpx.get(f"{exporter.url}/metrics").text
        return [line for line in text.splitlines() if line.startswith("ws_guard_worker_up{")]

    assert httpx.get(f"{exporter.url}/readyz").status_code == 503
    worker = spawn(rank="5")
    wait_until(lambda: up() == ['ws_guard_worker_up{engine="0",rank="5"} 1.0'])
    assert httpx.get(f"{exporter.url}/readyz").status_code == 200
    assert 'ws_guard_need_bytes{basis="peak"' in httpx.get(f"{exporter.url}/metrics").text
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    wait_until(lambda: up() == ['ws_guard_worker_up{engine="0",rank="5"} 0.0'])
    assert 'ws_guard_need_bytes{basis="peak"' not in httpx.get(f"{exporter.url}/metrics").text
    assert httpx.get(f"{exporter.url}/readyz").status_code == 503
    assert httpx.get(f"{exporter.url}/livez").status_code == 200


def test_it_stops_and_gives_its_port_back(start: Start) -> None:
    exporter = start()
    port = int(exporter.url.rpartition(":")[2])
    assert httpx.get(f"{exporter.url}/livez").status_code == 200
    exporter.stop()
    # Idle helper threads of the HTTP libraries may linger; none of ours may.
    assert not [t.name for t in threading.enumerate() if t.name.startswith("ws-guard")]
    for one in listen(f"127.0.0.1:{port}"):
        one.close()


def test_a_hung_board_hangs_no_answer(
    hanging_watch: HangingWatch, settings: Callable[..., Settings]
) -> None:
    exporter = Exporter(settings(), Refresher(hanging_watch, EventLog()))
    exporter.start()
    assert httpx.get(f"{exporter.url}/livez").status_code == 200
    body = httpx.get(f"{exporter.url}/health").json()
    assert body["checks"][0]["state"] == "unknown"
    hanging_watch.answering.set()
    exporter.stop()


HUNG = """
import threading
from ws_guard.exporter.snapshot import BoardWatch
read = BoardWatch.read
reads = []
def read_once(watch):
    if reads:
        threading.Event().wait()
    reads.append(1)
    return read(watch)
BoardWatch.read = read_once
"""


def test_a_process_whose_board_hangs_answers_and_ends(attach: Attach, serve: Serve) -> None:
    """The second read never comes back, as on a file system whose server is gone."""
    attach(planned=[])
    with serve(HUNG + SERVE) as (process, url):
        assert httpx.get(f"{url}/readyz").status_code == 200
        wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 503)
        told = httpx.get(f"{url}/health").json()["checks"][0]
        assert (told["name"], told["state"]) == ("board_readable", "fail")
        assert "the last good read is" in told["detail"]
        assert httpx.get(f"{url}/livez").status_code == 200
        assert httpx.get(f"{url}/metrics").status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


SLOW = """
import sys, time
from ws_guard.exporter import page
render = page.render
def slowly(*told):
    print("asked", file=sys.stderr, flush=True)
    time.sleep(1)
    return render(*told)
page.render = slowly
"""


def test_what_was_asked_before_the_end_is_answered(serve: Serve) -> None:
    with serve(SLOW + SERVE) as (process, url):
        with ThreadPoolExecutor() as pool:
            page = pool.submit(httpx.get, url, timeout=PATIENCE)
            assert line_of(process) == "asked\n"
            process.send_signal(signal.SIGTERM)
            answer = page.result(PATIENCE)
        assert answer.status_code == 200
        assert answer.text.rstrip().endswith("</html>")
        assert process.wait(PATIENCE) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(serve: Serve, number: signal.Signals) -> None:
    with serve() as (process, url):
        assert httpx.get(f"{url}/livez").status_code == 200
        process.send_signal(number)
        _, rest = process.communicate(timeout=PATIENCE)
        assert (process.returncode, rest) == (0, "")


def test_a_client_that_keeps_its_connection_does_not_keep_the_exporter(serve: Serve) -> None:
    with serve() as (process, url), httpx.Client() as client:
        assert client.get(f"{url}/livez").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_events_go_to_stderr_as_json(serve: Serve, attach: Attach) -> None:
    worker = attach(rank="4")
    worker.overflow(12_288)
    worker.die()
    with serve() as (process, _):
        told = [json.loads(line_of(process)) for _ in range(2)]
    assert [(line["event"], line["rank"]) for line in told] == [("overflow", "4"), ("death", "4")]
    assert told[0]["slab_bytes"] == 1_611_661_312


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"WS_GUARD_TLS_CERT": "cert.pem"}, "WS_GUARD_TLS_CERT and WS_GUARD_TLS_KEY go together"),
        ({"WS_GUARD_TLS_KEY": "key.pem"}, "WS_GUARD_TLS_CERT and WS_GUARD_TLS_KEY go together"),
        (
            {"WS_GUARD_TLS_CERT": "no.pem", "WS_GUARD_TLS_KEY": "no.pem"},
            "WS_GUARD_TLS_CERT=no.pem: No such file or directory; set it to a readable PEM file",
        ),
        ({"WS_GUARD_BOARD_GROUP": "no-such-group"}, "there is no such group"),
    ],
)
def test_what_it_cannot_do_is_refused(
    settings: Callable[..., Settings], environ: dict[str, str], named: str
) -> None:
    with pytest.raises(ServeError, match=named):
        Exporter(settings(**environ))


def test_threads_of_its_own_process_take_short_turns() -> None:
    """While hundreds of probes are answered, the board is read, by turns of 0.1 ms."""
    asked = "import sys; from ws_guard.exporter import server; from ws_guard.settings import *; "
    asked += "server.Exporter.run = lambda _: print(round(sys.getswitchinterval(), 6)); "
    asked += "sys.exit(server.serve(read_settings({'WS_GUARD_LISTEN': '127.0.0.1:0'})[0]))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "0.0001\n"


def test_it_never_meets_torch_or_the_probe() -> None:
    loaded = "import sys; import ws_guard.exporter.server, ws_guard.exporter.status; "
    loaded += "print([m for m in sys.modules if m.partition('.')[0] in ('torch', 'flashinfer')"
    loaded += " or m.startswith(('ws_guard.probe', 'ws_guard.contract'))])"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
