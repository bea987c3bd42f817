"""Basic authentication, with real bcrypt and over real HTTP."""

from __future__ import annotations

import asyncio
import base64
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from doors import PASSWORD, PATIENCE, hashed, wait_until
from slot_worker import ROUTES

from ws_guard.exporter import auth
from ws_guard.exporter.auth import BusyError, Credentials, Turnstile, credentials
from ws_guard.exporter.doorman import HEADERS
from ws_guard.exporter.server import Exporter, ServeError
from ws_guard.exporter.users import Users

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Attach, Start

    from ws_guard.settings import Settings


RIGHT = ("scraper", PASSWORD)
PROBES = ("/livez", "/readyz", "/readyz?verbose")
OTHERS = [route for route in ROUTES if route not in PROBES]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_bytes(b"scraper:" + hashed() + b"\n")
    return path


@pytest.fixture
def served(
    start: Start,
    file: Path,
    quick_renewal: None,  # noqa: ARG001 - as long as they serve
) -> Start:
    """Starts exporters that ask for a user of the file, and look at it all the time."""
    return partial(start, WS_GUARD_BASIC_AUTH_FILE=str(file))


@pytest.mark.parametrize(
    "path", [*OTHERS, "/nowhere", "/livez/", "//livez", "/livez%2F..%2Fmetrics"]
)
def test_nothing_but_the_probes_is_open(attach: Attach, served: Start, path: str) -> None:
    attach(planned=[])
    url = served().url
    refused = httpx.get(url + path)
    assert refused.status_code == 401
    assert refused.text == "a user and a password are needed\n"
    assert refused.headers["www-authenticate"] == 'Basic realm="ws_guard", charset="UTF-8"'
    assert refused.headers["cache-control"] == HEADERS["Cache-Control"]
    assert httpx.head(url + path).status_code == 401
    wrong = httpx.get(url + path, auth=("scraper", "Secret"))
    assert (wrong.status_code, wrong.text) == (401, refused.text)
    admitted = httpx.get(url + path, auth=RIGHT).status_code
    assert admitted == (200 if path in OTHERS else 404)


@pytest.mark.parametrize("path", PROBES)
def test_probes_are_open_unless_told_otherwise(attach: Attach, served: Start, path: str) -> None:
    attach()
    assert httpx.get(served().url + path).status_code == 200
    closed = served(WS_GUARD_BASIC_AUTH_PROBES="1").url
    assert httpx.get(closed + path).status_code == 401
    assert httpx.get(closed + path, auth=RIGHT).status_code == 200


def test_the_openapi_document_says_who_is_asked(served: Start) -> None:
    def closed(exporter: Exporter) -> dict[str, bool]:
        document = httpx.get(f"{exporter.url}/openapi.json", auth=RIGHT).json()
        assert document["components"]["securitySchemes"] == {
            "password": {"type": "http", "scheme": "basic"}
        }
        told = {path: each["get"] for path, each in document["paths"].items()}
        for operation in told.values():
            asked = operation.get("security") == [{"password": []}]
            assert ("401" in operation["responses"], "429" in operation["responses"]) == (
                asked,
                asked,
            )
        return {path: "security" in operation for path, operation in told.items()}

    usual = closed(served())
    assert {path for path, asked in usual.items() if not asked} == {"/livez", "/readyz"}
    assert len(usual) > 2
    assert closed(served(WS_GUARD_BASIC_AUTH_PROBES="1")) == dict.fromkeys(usual, True)


def test_a_file_that_will_not_do_is_named_at_the_start(
    settings: Callable[..., Settings], file: Path
) -> None:
    file.write_text("ada:plain")
    with pytest.raises(ServeError, match=r"WS_GUARD_BASIC_AUTH_FILE=.*: line 1: its hash is not"):
        Exporter(settings(WS_GUARD_BASIC_AUTH_FILE=str(file)))


def test_every_spelling_of_bcrypt(served: Start, file: Path) -> None:
    """htpasswd writes $2y$, older programs $2a$; the hash is the same."""
    tail = hashed()[3:]
    file.write_bytes(b"".join(b"%b:$2%b%b\n" % (v, v, tail) for v in (b"a", b"b", b"y")))
    url = served().url
    for version in "aby":
        assert httpx.get(f"{url}/health", auth=(version, PASSWORD)).status_code != 401


def test_users_are_renewed_with_their_file(served: Start, file: Path) -> None:
    url = f"{served().url}/metrics"

    def status(user: str, password: str) -> int:
        return httpx.get(url, auth=(user, password)).status_code

    assert (status(*RIGHT), status("ada", "other")) == (200, 401)
    new = file.with_name("new")
    new.write_bytes(b"ada:" + hashed("other") + b"\n")
    new.replace(file)
    # The right password of before is remembered no longer.
    wait_until(lambda: status("ada", "other") == 200)
    assert status(*RIGHT) == 401
    file.write_text("broken")
    wait_until(lambda: status("ada", "other") == 200)


@pytest.mark.parametrize("password", ["ü" * 30, "x" * 100, "a:b:c", ""])
def test_passwords_of_every_kind(served: Start, file: Path, password: str) -> None:
    file.write_bytes(b"ada:" + hashed(password) + b"\n")
    url = f"{served().url}/metrics"
    assert httpx.get(url, auth=("ada", password)).status_code == 200
    assert httpx.get(url, auth=("ada", "~" + password)).status_code == 401


def basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([basic(b"ada:secret")], Credentials("ada", b"secret")),
        (["bAsIc   YWRhOg=="], Credentials("ada", b"")),
        ([basic(b"ada:a:b")], Credentials("ada", b"a:b")),
        ([basic("ü:ä".encode())], Credentials("ü", "ä".encode())),
        ([basic(b"ada:\xff")], Credentials("ada", b"\xff")),
        ([basic(b"\xff:x")], None),
        ([basic(b"ada")], None),
        (["Basic"], None),
        (["Basic !!!!"], None),
        (["Basic YWRhOg"], None),
        (["Basic ü"], None),
        (["Bearer YWRhOg=="], None),
        ([], None),
        ([basic(b"ada:x"), basic(b"ada:y")], None),
    ],
)
def test_credentials(headers: list[str], told: Credentials | None) -> None:
    assert credentials(headers) == told


class SlowPasswords:
    """Stands in for bcrypt where its turns are what matters."""

    def __init__(self) -> None:
        self.running = self.most_running = self.checked = 0
        self.go = threading.Event()

    def remembered(self, _users: Users, user: str, _password: bytes) -> bool:
        return user == "known"

    def check(self, _users: Users, user: str, _password: bytes) -> bool:
        self.running += 1
        self.checked += 1
        self.most_running = max(self.most_running, self.running)
        self.go.wait(PATIENCE)
        self.running -= 1
        return user == "right"


def test_wrong_passwords_wait_in_line_and_right_ones_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "WAIT_SECONDS", PATIENCE)
    passwords: Any = SlowPasswords()

    async def play() -> list[object]:
        turnstile = Turnstile(passwords, clock=lambda: 0.0)

        def admits(user: str) -> asyncio.Task[bool]:
            return asyncio.create_task(turnstile.admits(Users({}), Credentials(user, b"")))

        waiting = [admits("wrong")]
        while not passwords.running:
            await asyncio.sleep(0.001)
        waiting += [admits("wrong") for _ in range(auth.MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await admits("right")
        assert await admits("known")
        passwords.go.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(play()) == [False] * 9
    assert (passwords.checked, passwords.most_running) == (9, 1)


def test_after_a_wrong_password_nothing_is_checked_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check of 1 s is followed by a rest of 4 s: a fifth of one core at most."""
    monkeypatch.setattr(auth, "WAIT_SECONDS", 0.01)
    passwords: Any = SlowPasswords()
    passwords.go.set()
    now = iter([10.0, 10.0, 11.0, 14.9, 15.0, 15.0, 99.0, 99.0, 99.0, 99.0])

    async def play() -> None:
        turnstile = Turnstile(passwords, clock=lambda: next(now))
        told = Credentials("wrong", b"")
        assert not await turnstile.admits(Users({}), told)
        with pytest.raises(BusyError):
            await turnstile.admits(Users({}), told)
        assert passwords.checked == 1
        assert await turnstile.admits(Users({}), Credentials("right", b""))
        # A right one is followed by no rest.
        assert await turnstile.admits(Users({}), Credentials("right", b""))

    asyncio.run(play())


def test_who_comes_too_often_is_told_so(served: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MOST_WAITING", 0)
    url = served().url
    answer = httpx.get(f"{url}/metrics", auth=RIGHT)
    assert (answer.status_code, answer.text) == (429, "too many tries\n")
    assert answer.headers["retry-after"] == "2"
    assert httpx.get(f"{url}/livez").status_code == 200
