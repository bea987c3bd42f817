"""Basic authentication as a thin ASGI layer before the routes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .renewal import Renewal
from .users import FILE, Passwords, Users, UsersError, read_users

#: What a kubelet asks; it has no password.
PROBES = frozenset({"/livez", "/readyz"})

#: Checks that may wait for their turn, and for how long.
MOST_WAITING, WAIT_SECONDS = 8, 2.0
#: After a wrong password nothing is checked for so many times as long as that check took.
REST = 4.0

_SCHEME = "password"
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="ws_guard", charset="UTF-8"'}


class Credentials(NamedTuple):
    """What a client says who it is."""

    user: str
    password: bytes


class BusyError(Exception):
    """Too many passwords wait to be checked."""


class Turnstile:
    """Lets one password be checked at a time, and after a wrong one rests.

    So wrong passwords take a fifth of one core at most, however many there are. Right ones are
    known again, and do not come here.
    """

    def __init__(self, passwords: Passwords, clock: Callable[[], float] = time.monotonic) -> None:
        self._passwords = passwords
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._rest_until = 0.0

    async def admits(self, users: Users, told: Credentials) -> bool:
        """Whether the password is right; `BusyError` where its turn does not come soon."""
        if self._passwords.remembered(users, *told):
            return True
        if self._waiting >= MOST_WAITING:
            raise BusyError
        self._waiting += 1
        try:
            await asyncio.wait_for(self._wait_for_turn(), WAIT_SECONDS)
        except asyncio.TimeoutError:
            raise BusyError from None
        finally:
            self._waiting -= 1
        try:
            return await self._check(users, told)
        finally:
            self._turn.release()

    async def _wait_for_turn(self) -> None:
        await self._turn.acquire()
        try:
            await asyncio.sleep(max(0.0, self._rest_until - self._clock()))
        except asyncio.CancelledError:
            self._turn.release()
            raise

    async def _check(self, users: Users, told: Credentials) -> bool:
        begun = self._clock()
        right = await run_in_threadpool(self._passwords.check, users, *told)
        if not right:
            ended = self._clock()
            self._rest_until = ended + REST * (ended - begun)
        return right


class BasicAuth:
    """Asks for a user of the file at every path but `open_paths`."""

    def __init__(self, app: ASGIApp, users: Renewal[Users], open_paths: frozenset[str]) -> None:
        self._app = app
        self._users = users
        self._open_paths = open_paths
        self._turnstile = Turnstile(Passwords())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer that it is not served."""
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        told = credentials(Headers(scope=scope).getlist("authorization"))
        refusal = PlainTextResponse("a user and a password are needed\n", 401, _CHALLENGE)
        try:
            if told is not None and await self._turnstile.admits(self._users.value, told):
                await self._app(scope, receive, send)
                return
        except BusyError:
            refusal = PlainTextResponse("too many tries\n", 429, {"Retry-After": "2"})
        await refusal(scope, receive, send)


def credentials(headers: list[str]) -> Credentials | None:
    """User and password of the one header `Authorization: Basic ...`; None for anything else."""
    scheme, _, token = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        return Credentials(user.decode(), password) if colon else None
    except (binascii.Error, UnicodeError, ValueError):
        return None


def declare_users(openapi: dict[str, Any], open_paths: frozenset[str]) -> None:
    """Say in an OpenAPI document where a user is asked for, and how that is answered."""
    schemes = openapi.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes[_SCHEME] = {"type": "http", "scheme": "basic"}
    plain = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    for path, operations in openapi["paths"].items():
        for operation in operations.values() if path not in open_paths else ():
            operation["security"] = [{_SCHEME: []}]
            operation["responses"] |= {
                "401": {"description": "No user of the file, or a wrong password.", **plain},
                "429": {"description": "Too many passwords wait to be checked.", **plain},
            }


def users_of(path: str) -> Renewal[Users]:
    """The users of a file, renewed with it; `UsersError` where it will not do, or bcrypt lacks."""
    try:
        import bcrypt  # noqa: F401 - whether it is there is all we ask
    except ImportError:
        raise UsersError(f"{FILE} needs bcrypt; pip install 'ws-guard[exporter]'") from None
    return Renewal("the file of users", (path,), lambda: read_users(path))
