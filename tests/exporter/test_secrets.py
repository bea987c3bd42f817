"""No path, no environment and no content of tensors in any answer: marks are planted and sought."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from doors import PASSWORD, SERVE, ask, exporter_process, hashed
from slot_worker import CRASH_PLAN, ROUTES, SlotWorker, busy

from ws_guard.board import Board
from ws_guard.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Attach


MARK = "pLanTed"
QUERIES = ("?verbose", f"?{MARK[::-1]}=1")
REQUESTS = [
    *((method, path) for path in ROUTES for method in ("GET", "HEAD", "POST", "OPTIONS")),
    *(("GET", path + query) for path in ("/", "/readyz", "/health") for query in QUERIES),
    ("GET", "/api/v1/calls"),
    ("GET", "/api/v1/calls?engine=0&rank=0&limit=-1"),
    ("GET", "/api/v1/calls?engine=../../etc/passwd&rank=9"),
    *(("GET", path) for path in ("/nowhere", "/docs", "/../../etc/passwd", "/%2e%2e/", "/%00")),
]
#: What goes wrong before it comes to a route.
BROKEN = (
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """A board whose path has the mark in it."""
    return Board(str(tmp_path / f"{MARK}-board" / "board"))


def plant(attach: Attach) -> SlotWorker:
    """A worker whose document says more than anybody need know."""
    worker = busy(attach)
    _, problems = read_settings(
        {"WS_GUARD_SIZING": MARK, "WS_GUARD_LISTEN": MARK, "WS_GUARD_MIN_MARGIN_BYTES": MARK}
    )
    assert len(problems) == 3
    worker.describe(
        contract_reason=f"/usr/lib/{MARK}/fmhaKernelLauncher.cu changed",
        info={
            "model_name": f"/mnt/{MARK}/models/deepseek",
            "device": f"/dev/{MARK}/gpu0",
            "engine_name": f"s3://{MARK}/vllm",
            "environ": {"HF_TOKEN": MARK},
            MARK: MARK,
        },
        problems=[*problems, f"OSError: '/home/{MARK}/board' is gone", f"see (/tmp/{MARK}/log)"],
        warnings=[f"could not write /var/{MARK}/x: full", f"no '~/a b/{MARK}', no ./{MARK}"],
        planned=[CRASH_PLAN | {"workspace": "ws0", "command": [MARK], MARK: MARK}],
        environ={"HF_TOKEN": MARK},
        tensors=[[MARK, 0.25]],
        **{MARK: MARK},
    )
    return worker


@pytest.fixture
def url(attach: Attach, board: Board, tmp_path: Path) -> Iterator[str]:
    """An exporter whose environment has the mark in it."""
    plant(attach)
    for name in (f"{MARK}.slot", f"{MARK}.txt"):
        Path(board.path, name).write_text(MARK)
    Path(board.path, "link.slot").symlink_to(f"/etc/{MARK}")
    environ = {
        "WS_GUARD_BOARD": board.path,
        "HF_TOKEN": MARK,
        "HOME": f"/home/{MARK}",
        "WS_GUARD_TRUSTED_UIDS": "1234",
        "TMPDIR": str(tmp_path),
    }
    with exporter_process(environ) as (_, url):
        yield url


def told(url: str, method: str, path: str, auth: tuple[str, str] | None = None) -> str:
    """An answer whole: status, headers, body."""
    # Unless told otherwise, it reads every root certificate for each request.
    answer = httpx.request(method, url + path, auth=auth, verify=False)  # noqa: S501 - HTTP
    return f"{answer.status_code} {dict(answer.headers)}\n{answer.text}"


def test_what_was_planted_is_found_in_no_answer(url: str) -> None:
    for method, path in REQUESTS:
        assert MARK not in told(url, method, path), (method, path)
    for request in BROKEN:
        answer = ask(url, request)
        assert answer.startswith(b"HTTP/1.1 400 "), request
        assert MARK.encode() not in answer


def test_what_may_be_known_is_there(url: str) -> None:
    """The same document's words beside the marks do come through."""
    health = told(url, "GET", "/health")
    for words in ("deepseek", "OSError: '(path)' is gone", "could not write (path): full"):
        assert words in health
    assert "WS_GUARD_SIZING has a value that is not allowed: use auto or off" in health
    assert "WS_GUARD_LISTEN has a value that is not allowed: it is not host:port" in health


def test_nor_when_the_board_fails(url: str, board: Board) -> None:
    shutil.rmtree(board.path)
    Path(board.path).write_text(MARK)
    while httpx.get(f"{url}/metrics").status_code != 503:
        pass
    for method, path in REQUESTS:
        answer = told(url, method, path)
        assert MARK not in answer, (method, path)
    assert "the board is not a directory" in told(url, "GET", "/health")


def test_nor_when_a_user_is_asked_for(attach: Attach, board: Board, tmp_path: Path) -> None:
    """Neither the file of users nor anybody in it, whoever asks, and whatever becomes of it."""
    plant(attach)
    users = tmp_path / f"{MARK}-users"
    hash_of_both = hashed().decode()
    users.write_text(f"{MARK}:{hash_of_both}\nada:{hash_of_both}\n")
    environ = {"WS_GUARD_BOARD": board.path, "WS_GUARD_BASIC_AUTH_FILE": str(users)}
    asked = [(method, path) for method, path in REQUESTS if method == "GET"]
    with exporter_process(environ) as (process, url):
        for auth in (None, (MARK[::-1], PASSWORD), ("ada", "wrong"), ("ada", PASSWORD)):
            for method, path in asked:
                answer = told(url, method, path, auth)
                assert MARK not in answer, (method, path, auth)
                assert hash_of_both not in answer
                assert PASSWORD not in answer
        users.write_text(f"{MARK} is no hash")
        assert process.stderr
        while "line 1: it is not user:hash" not in process.stderr.readline():
            pass
        for method, path in asked:
            assert MARK not in told(url, method, path, ("ada", PASSWORD)), (method, path)


def test_an_error_of_our_own_tells_nothing(board: Board) -> None:
    broken = f"""
from ws_guard.exporter import checks
def broken(*_):
    raise RuntimeError("{MARK}")
checks.examine = broken
"""
    with exporter_process({"WS_GUARD_BOARD": board.path}, broken + SERVE) as (_, url):
        answer = httpx.get(f"{url}/health")
        assert (answer.status_code, answer.text) == (500, "Internal Server Error")
        assert httpx.get(f"{url}/livez").status_code == 200
