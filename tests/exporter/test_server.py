"""The exporter as a server: real sockets, real signals, real deaths."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import httpx
import pytest
from slot_worker import SlotWorker

from ws_guard.exporter.events import EventLog
from ws_guard.exporter.refresh import Refresher
from ws_guard.exporter.server import Exporter, ListenError, ServeError, listen
from ws_guard.exporter.snapshot import BoardWatch, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ws_guard.board import Board
    from ws_guard.settings import Settings

    Attach: TypeAlias = Callable[..., SlotWorker]
    Serve: TypeAlias = Callable[..., subprocess.Popen[str]]

PATIENCE = 20.0
SERVE = "import sys; from ws_guard.settings import require_settings; "
SERVE += "from ws_guard.exporter.server import serve; sys.exit(serve(require_settings()))"


def wait_until(holds: Callable[[], bool]) -> None:
    """Poll; a machine may be slow, but not that slow."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


@pytest.fixture
def exporter(settings: Callable[..., Settings]) -> Iterator[Exporter]:
    exporter = Exporter(settings())
    exporter.start()
    yield exporter
    exporter.stop()


@pytest.fixture
def served(board: Board) -> Iterator[Serve]:
    """Starts the exporter as a process of its own, over a board that is there."""
    board.prepare()
    started: list[subprocess.Popen[str]] = []

    def start(script: str = SERVE, **environ: str) -> subprocess.Popen[str]:
        own = {"WS_GUARD_BOARD": board.path, "WS_GUARD_LISTEN": "127.0.0.1:0"}
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ | own | environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    return process.stderr.readline()


def test_a_whole_life_over_http(
    spawn: Callable[..., subprocess.Popen[str]], exporter: Exporter
) -> None:
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


def test_it_stops_and_gives_its_port_back(settings: Callable[..., Settings]) -> None:
    exporter = Exporter(settings())
    exporter.start()
    port = int(exporter.url.rpartition(":")[2])
    assert httpx.get(f"{exporter.url}/livez").status_code == 200
    exporter.stop()
    # Idle helper threads of the HTTP libraries may linger; none of ours may.
    assert not [t.name for t in threading.enumerate() if t.name.startswith("ws-guard")]
    for one in listen(f"127.0.0.1:{port}"):
        one.close()


class HangingWatch(BoardWatch):
    """A board whose file system does not answer until told to."""

    def __init__(self, board: Board) -> None:
        super().__init__(board)
        self.answering = threading.Event()

    def read(self) -> Snapshot:
        self.answering.wait(PATIENCE)
        return super().read()


def test_a_hung_board_hangs_no_answer(board: Board, settings: Callable[..., Settings]) -> None:
    watch = HangingWatch(board)
    refresher = Refresher(watch, EventLog())
    exporter = Exporter(settings(), refresher)
    exporter.start()
    assert httpx.get(f"{exporter.url}/livez").status_code == 200
    body = httpx.get(f"{exporter.url}/health").json()
    assert body["checks"][0]["state"] == "unknown"
    watch.answering.set()
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


def test_a_process_whose_board_hangs_answers_and_ends(attach: Attach, served: Serve) -> None:
    """The second read never comes back, as on a file system whose server is gone."""
    attach(planned=[])
    process = served(HUNG + SERVE)
    url = first_line(process).split(" on ")[1].split(",")[0]
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


def test_what_was_asked_before_the_end_is_answered(served: Serve) -> None:
    process = served(SLOW + SERVE)
    url = first_line(process).split(" on ")[1].split(",")[0]
    with ThreadPoolExecutor() as pool:
        page = pool.submit(httpx.get, url, timeout=PATIENCE)
        assert first_line(process) == "asked\n"
        process.send_signal(signal.SIGTERM)
        answer = page.result(PATIENCE)
    assert answer.status_code == 200
    assert answer.text.rstrip().endswith("</html>")
    assert process.wait(PATIENCE) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(served: Serve, board: Board, number: signal.Signals) -> None:
    process = served()
    line = first_line(process)
    url = line.split(" on ")[1].split(",")[0]
    assert line == f"ws-guard exporter on {url}, board {board.path}\n"
    assert httpx.get(f"{url}/livez").status_code == 200
    process.send_signal(number)
    _, rest = process.communicate(timeout=PATIENCE)
    assert (process.returncode, rest) == (0, "")


def test_a_client_that_keeps_its_connection_does_not_keep_the_exporter(served: Serve) -> None:
    process = served()
    url = first_line(process).split(" on ")[1].split(",")[0]
    with httpx.Client() as client:
        assert client.get(f"{url}/livez").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_events_go_to_stderr_as_json(served: Serve, attach: Attach) -> None:
    worker = attach(rank="4")
    worker.overflow(12_288)
    worker.die()
    process = served()
    first_line(process)
    told = [json.loads(first_line(process)) for _ in range(2)]
    assert [(line["event"], line["rank"]) for line in told] == [("overflow", "4"), ("death", "4")]
    assert told[0]["slab_bytes"] == 1_611_661_312


def test_a_port_that_is_taken(settings: Callable[..., Settings]) -> None:
    (holder,) = listen("127.0.0.1:0")
    address = f"127.0.0.1:{holder.getsockname()[1]}"
    exporter = Exporter(settings(WS_GUARD_LISTEN=address))
    with pytest.raises(ListenError) as caught:
        exporter.start()
    holder.close()
    expected = f"cannot listen on {address}: Address already in use; set WS_GUARD_LISTEN"
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0: .*; set WS_GUARD_LISTEN"):
        listen("192.0.2.1:0")


def test_a_host_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ListenError, match="nowhere:80: Name or service not known; set WS_GUARD"):
        listen("nowhere:80")


@pytest.mark.parametrize("host", ["..", "a" * 64, f"{'a' * 64}.example"])
@pytest.mark.parametrize("port", [0, 80])
def test_a_host_that_is_no_name(host: str, port: int) -> None:
    with pytest.raises(
        ListenError, match="no host name; set WS_GUARD_LISTEN, or --listen, to a free host:port"
    ):
        listen(f"{host}:{port}")


def test_a_star_is_both_families() -> None:
    sockets = listen("*:0")
    names = [one.getsockname() for one in sockets]
    families = [one.family for one in sockets]
    for one in sockets:
        one.close()
    if not socket.has_dualstack_ipv6():
        assert families == [socket.AF_INET]
        return
    assert families == [socket.AF_INET, socket.AF_INET6]
    assert [name[0] for name in names] == ["0.0.0.0", "::"]
    assert names[0][1] == names[1][1] != 0


def test_a_host_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    (one,) = listen("*:0")
    assert one.family == socket.AF_INET
    one.close()


def test_both_families_are_answered(settings: Callable[..., Settings]) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    exporter = Exporter(settings(WS_GUARD_LISTEN="*:0"))
    exporter.start()
    port = exporter.url.rpartition(":")[2]
    assert exporter.url == f"http://127.0.0.1:{port}"
    for host in ("127.0.0.1", "[::1]"):
        assert httpx.get(f"http://{host}:{port}/livez").status_code == 200
    exporter.stop()


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
