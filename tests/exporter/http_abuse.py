"""Requests that no client should make, by raw sockets: `python tests/exporter/http_abuse.py URL`.

Paths and parameters come from the exporter's own OpenAPI document, headers and bytes from a list of
what has broken servers before; then all of it is changed at random.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from random import Random
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parent))

from doors import connect, rest_of

METHODS = (
    "GET",
    "GET",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "G E T",
    "",
)
VERSIONS = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.1x", "")
PATHS = (
    "/nowhere",
    "//",
    "/..",
    "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/%00",
    "/%ff%fe",
    "/%",
    "/%zz",
    "*",
    "http://elsewhere/metrics",
    "elsewhere:80",
    "/metrics/",
    "/METRICS",
    "/health;x=1",
    "/\\",
    "/" + "a" * 8_000,
    "/" + "../" * 500,
    "/é",
)
VALUES = (
    "",
    "0",
    "-1",
    "1",
    "1024",
    "1025",
    "1e9",
    "NaN",
    "9" * 400,
    "x" * 129,
    "\0",
    "%",
    "../..",
    "'; --",
    "<script>",
    "\u202e",
    "é",
    "[]",
    "{}",
    "true",
    " ",
    "0x10",
    "${jndi:x}",
    "\r\nX-Injected: 1",
)
HEADERS = (
    "Host: exporter",
    "Host: a\r\nHost: b",
    "Host:",
    "Host: \xff",
    "Content-Length: -1",
    "Content-Length: 9999999999999999999999",
    "Content-Length: 5",
    "Content-Length: 1\r\nContent-Length: 2",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 3",
    "Transfer-Encoding: gzip, chunked",
    "Expect: 100-continue",
    "Expect: anything",
    "Upgrade: websocket",
    "Connection: upgrade\r\nUpgrade: h2c",
    "Connection: keep-alive",
    "Connection: close, close",
    "Accept: application/openmetrics-text; version=1.0.0",
    "Accept: ;;;=,,,q=x",
    "Accept: " + "a/b," * 900,
    "Accept-Encoding: gzip;q=nan",
    "Range: bytes=0-",
    "Cookie: " + "c=" * 2_000,
    "X-Forwarded-For: ::::",
    "X-Forwarded-Proto: \t",
    "Authorization: Basic ====",
    "Authorization: Basic " + "A" * 4_000,
    "Authorization: ",
    "If-None-Match: *",
    " folded: line",
    "X: y\r\n folded",
    "No colon here",
    ": no name",
    "X\0Y: z",
    "X: a\0b",
    "X: \x7f\x80",
    "Origin: null",
    "Content-Type: application/json",
)
BODIES = (
    b"",
    b"",
    b"",
    b"{}",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"-1\r\n",
    b"\0" * 999,
)

_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) [^\r\n]*\r\n")
#: A client's patience with what may be no request at all.
_ANSWER_SECONDS = 0.25
#: What may be answered; 503 is what /health and /readyz say of a board that is not ready.
EXPECTED = {200, 400, 401, 404, 405, 422, 429, 503}


class Abuse:
    """Makes requests out of an OpenAPI document."""

    def __init__(self, openapi: dict[str, object]) -> None:
        paths = openapi["paths"]
        assert isinstance(paths, dict)
        self._paths: dict[str, list[str]] = {
            path: [each["name"] for each in told["get"].get("parameters", [])]
            for path, told in paths.items()
        }

    def request(self, random: Random) -> bytes:
        """One request, or something like it."""
        method, version = random.choice(METHODS), random.choice(VERSIONS)
        if random.random() < 0.5:  # half of them begin well, to get past the parser
            method, version = "GET", "HTTP/1.1"
        lines = [f"{method} {self._target(random)} {version}"]
        headers = [random.choice(HEADERS) for _ in range(random.choice((0, 0, 0, 1, 1, 2, 5)))]
        lines += ["Host: exporter", *headers] if random.random() < 0.8 else headers
        head = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1", "replace")
        raw = bytearray(head + random.choice(BODIES))
        if random.random() < 0.1:
            for _ in range(random.choice((1, 3, 20))):
                raw[random.randrange(len(raw))] = random.randrange(256)
        if random.random() < 0.05:
            del raw[random.randrange(len(raw)) :]
        return bytes(raw)

    def _target(self, random: Random) -> str:
        if random.random() < 0.3:
            return random.choice(PATHS)
        path = random.choice(list(self._paths))
        names = [*self._paths[path], "verbose", "x"]
        pairs = [
            f"{random.choice(names)}={self._value(random)}"
            for _ in range(random.choice((0, 1, 2, 3)))
        ]
        return path + ("?" + "&".join(pairs) if pairs else "")

    @staticmethod
    def _value(random: Random) -> str:
        value = random.choice(VALUES)
        return quote(value, safe="") if random.random() < 0.7 else value.replace("\r\n", "")


def answer_to(url: str, raw: bytes) -> int:
    """The status of the answer to some bytes, 0 for none; fails where it is not a sound one."""
    with connect(url) as connection:
        try:
            connection.sendall(raw)
            # The end of a request that is none would never come.
            connection.settimeout(_ANSWER_SECONDS)
            told = rest_of(connection)
        except TimeoutError:
            return 0
        except ConnectionError:
            return 0
    match = _STATUS.match(told)
    if not told:
        return 0
    assert match is not None, (raw, told[:200])
    status = int(match[1])
    assert status in EXPECTED, (raw, told[:200])
    assert b"Traceback" not in told, (raw, told[:200])
    assert b"X-Injected" not in told.partition(b"\r\n\r\n")[0], (raw, told[:200])
    return status


def openapi(url: str) -> bytes:
    """The document of an exporter that asks for no user."""
    with urllib.request.urlopen(f"{url}/openapi.json") as answer:  # noqa: S310 - our exporter
        document: bytes = answer.read()
    return document


def abuse(url: str, document: bytes, requests: int, seed: int) -> Counter[int]:
    """So many requests made from an OpenAPI document; how many had which status."""
    maker = Abuse(json.loads(document))
    tally: Counter[int] = Counter()
    for number in range(requests):
        raw = maker.request(Random(f"{seed}/{number}"))  # noqa: S311 - to be made again
        tally[answer_to(url, raw)] += 1
        if number % 100 == 0:
            with urllib.request.urlopen(f"{url}/livez", timeout=5) as alive:  # noqa: S310 - the same
                assert alive.status == 200
    return tally


def main() -> None:
    """Abuse the exporter at a URL, and print what it answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    told = parser.parse_args()
    begun = time.monotonic()
    tally = abuse(told.url, openapi(told.url), told.requests, told.seed)
    print(f"{told.requests:,} raw requests, seed {told.seed}, {time.monotonic() - begun:.0f} s")
    print(
        "\n".join(
            f"{count:>9,}  {status or 'no answer'}" for status, count in sorted(tally.items())
        )
    )


if __name__ == "__main__":
    main()
