"""The users of basic authentication: an htpasswd file with bcrypt hashes."""

from __future__ import annotations

import hmac
import os
import re
from typing import NamedTuple

FILE = "WS_GUARD_BASIC_AUTH_FILE"

#: A check of a higher cost takes seconds; one of a lower cost, bcrypt does not know.
LEAST_COST, MOST_COST = 4, 14
_MOST_BYTES, _MOST_USERS = 1 << 20, 1000
_MOST_CACHED = 1024
#: bcrypt looks at so many bytes of a password.
_PASSWORD_BYTES = 72
_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
_HOW = "make it with htpasswd -B"


class UsersError(ValueError):
    """A file of users that will not do; the text names file and line, and what to do."""


class Users(NamedTuple):
    """Hashes by user name; at least one."""

    hashes: dict[str, bytes]


def read_users(path: str) -> Users:
    """The users of an htpasswd file; `UsersError` where one line of it is not understood."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise UsersError(f"{FILE}={path}: {error.strerror}; {_HOW}") from None
    except UnicodeDecodeError:
        raise UsersError(f"{FILE}={path}: it is no text in UTF-8; {_HOW}") from None
    if len(data) > _MOST_BYTES:
        raise UsersError(f"{FILE}={path}: it has more than {_MOST_BYTES:,} bytes; {_HOW}")
    hashes: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                user, hashed = _entry(line.strip())
            except ValueError as error:
                raise UsersError(f"{FILE}={path}: line {number}: {error}; {_HOW}") from None
            hashes[user] = hashed
    if not hashes:
        raise UsersError(f"{FILE}={path}: it names no user; {_HOW}")
    if len(hashes) > _MOST_USERS:
        raise UsersError(f"{FILE}={path}: it names more than {_MOST_USERS:,} users; shorten it")
    return Users(hashes)


def _entry(line: str) -> tuple[str, bytes]:
    user, colon, hashed = line.partition(":")
    if not colon or not user:
        raise ValueError("it is not user:hash")
    match = _HASH.fullmatch(hashed)
    if match is None:
        raise ValueError("its hash is not bcrypt's")
    if not LEAST_COST <= int(match[1]) <= MOST_COST:
        raise ValueError(f"its cost is {int(match[1])}, not {LEAST_COST} to {MOST_COST}")
    return user, hashed.encode()


class Passwords:
    """Checks passwords, and knows again those that were right.

    A user that nobody knows costs what a known one does: the check is made against some user's
    hash, always the same one's for the same name, and its answer thrown away.
    """

    def __init__(self) -> None:
        # Imported here: an exporter without basic authentication does without it.
        import bcrypt

        self._matches = bcrypt.checkpw
        self._key = os.urandom(32)
        self._right: dict[bytes, None] = {}

    def remembered(self, users: Users, user: str, password: bytes) -> bool:
        """Whether this was right before, the user's hash being the same; costs next to nothing."""
        return self._digest(users, user, password) in self._right

    def check(self, users: Users, user: str, password: bytes) -> bool:
        """Whether a password is right, by bcrypt: it takes as long as the hash's cost says."""
        names = list(users.hashes)
        other = int.from_bytes(self._mac(user.encode())[:8], "big") % len(names)
        hashed = users.hashes.get(user, users.hashes[names[other]])
        known = user in users.hashes and b"\0" not in password
        # Beyond 72 bytes htpasswd heeds nothing; bcrypt's Python refuses more.
        matches = self._matches(password.replace(b"\0", b"?")[:_PASSWORD_BYTES], hashed)
        if not (known and matches):
            return False
        if len(self._right) >= _MOST_CACHED:
            del self._right[next(iter(self._right))]
        self._right[self._digest(users, user, password)] = None
        return True

    def _digest(self, users: Users, user: str, password: bytes) -> bytes:
        told = (user.encode(), users.hashes.get(user, b""), password)
        return self._mac(b"".join(len(part).to_bytes(8, "big") + part for part in told))

    def _mac(self, message: bytes) -> bytes:
        return hmac.digest(self._key, message, "sha256")
