"""Remarks on standard error: one that cannot be written changes no answer and no exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

WS_GUARD = [sys.executable, "-m", "ws_guard"]
FITS = ["plan", "--heads", "64", "--tp", "8", "--max-num-batched-tokens", "16384"]
FITS += ["--flashinfer", "0.6.14", "--json"]
#: With a misspelt setting every command has something to remark.
MISSPELT = {"WS_GUARD_BORD": "1"}


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def read_by_nobody() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def closed() -> None:
    os.close(2)


def answer(stderr: Callable[[], int] | None, *arguments: str) -> tuple[int, str]:
    """Exit code and standard output of a command whose standard error is `stderr`, or closed."""
    taken = None if stderr is None else stderr()
    done = subprocess.run(
        [*WS_GUARD, *arguments],
        stdout=subprocess.PIPE,
        stderr=taken,
        preexec_fn=closed if taken is None else None,
        env={**os.environ, **MISSPELT},
        text=True,
        check=False,
    )
    if taken is not None:
        os.close(taken)
    return done.returncode, done.stdout


@pytest.mark.parametrize("stderr", [full, read_by_nobody, None], ids=["full", "broken", "closed"])
class TestNobodyReads:
    def test_an_answer_stays_what_it_is(self, stderr: Callable[[], int] | None) -> None:
        code, out = answer(stderr, *FITS)
        assert (code, json.loads(out)["fits"]) == (0, True)

    def test_bad_usage_stays_bad_usage(self, stderr: Callable[[], int] | None) -> None:
        assert answer(stderr, "nosuch") == (2, "")
        assert answer(stderr, "plan", "--heads", "x") == (2, "")
        assert answer(stderr, "run", "--", "no-such-program") == (2, "")


def test_the_exporter_serves_whoever_reads_its_lines(tmp_path: Path) -> None:
    from urllib.request import urlopen

    reading, writing = os.pipe()
    os.close(reading)
    # Only the operating system knows the port of an exporter that cannot tell it.
    serve = subprocess.Popen(
        [*WS_GUARD, "serve", "--board", str(tmp_path), "--listen", "127.0.0.1:0"], stderr=writing
    )
    try:
        os.close(writing)
        port = listening_port(serve)
        with urlopen(f"http://127.0.0.1:{port}/livez", timeout=30) as told:
            assert told.status == 200
    finally:
        serve.terminate()
        assert serve.wait(30) == 0


def listening_port(process: subprocess.Popen[bytes]) -> int:
    """The port of the one socket that a process listens on, once there is one."""
    for _ in range(3_000):
        assert process.poll() is None, "it has ended"
        held = set()
        for entry in os.scandir(f"/proc/{process.pid}/fd"):
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
            held.add(found[1] if found else "")
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in held:
                return int(local.split(":")[1], 16)
        time.sleep(0.01)
    raise AssertionError("it never listened")
