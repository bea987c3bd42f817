"""The demonstration as users start it: both natives, both layouts, and its refusals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
ENDED = "ended: its workers, its exporter and its board are gone\n"
NEWEST = ROOT / ".venv-flashinfer-0.7.4" / "bin" / "python"


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ws_guard", "demo", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=240,
    )


def test_layout_b_on_the_real_launcher() -> None:
    done = demo("--once", "--layout", "B")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first refused step: 3,081 tokens (threshold 3,080)" in done.stdout
    # The launcher's own words, as in the public report.
    assert "with size 404881408 and alignment 16, but only 404750336 bytes" in done.stdout
    assert "step of 12,288 tokens: refused on 8 ranks" in done.stdout
    assert done.stdout.count("[ok]") == 7
    assert "FAILED" not in done.stdout


def test_the_crash_stays_on_the_page_until_somebody_has_seen_it() -> None:
    """At a terminal, where Enter goes on; the pause is longer than this test may take."""
    keyboard, terminal = pty.openpty()
    options = ["--pause", "3600", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "ws_guard", "demo", *options],
        stdin=terminal,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = list(until("Enter goes on", process.stdout))
        (url,) = re.findall(r"status page (\S+)/", "".join(told))
        page = httpx.get(f"{url}/readyz?verbose")
        assert (page.status_code, "[-]no_overflow failed" in page.text) == (503, True)
        os.write(keyboard, b"\n")
        told = list(until("Ctrl-C ends it", process.stdout))
        assert any("all checks passed" in line for line in told)
        assert httpx.get(f"{url}/readyz").status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stdout.read() == f"\n{ENDED}"
    finally:
        process.kill()
        process.communicate()
        os.close(keyboard)
        os.close(terminal)


def test_ctrl_c_before_its_end() -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "ws_guard", "demo", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    list(until("status page", process.stdout))
    process.send_signal(signal.SIGINT)
    told, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert told.endswith(f"\n{ENDED}")
    assert said == ""


def until(word: str, stream: IO[str]) -> Iterator[str]:
    """The lines of a stream up to the one that holds a word."""
    for line in stream:
        yield line
        if word in line:
            return
    pytest.fail(f"the stream ended before {word!r}")


def test_without_a_compiler_a_stand_in_serves(tmp_path: Path) -> None:
    # An empty PATH hides every compiler, an empty cache what was compiled before. And no home.
    empty = dict.fromkeys(("PATH", "XDG_CACHE_HOME", "CUDA_HOME"), str(tmp_path))
    done = demo("--once", **empty, HOME="/proc/no-home", WS_GUARD_ON_OVERFLOW="split")
    assert done.returncode == 0, done.stdout + done.stderr
    told = "not used by the demonstration, which observes: WS_GUARD_ON_OVERFLOW\n"
    assert told in done.stdout
    assert "a stand-in for its launcher (" in done.stdout
    # Nothing is found on that PATH by its name.
    assert f"in a terminal: {Path(sys.executable).parent}/" in done.stdout
    assert "first refused step: 3,081 tokens" in done.stdout


def test_the_recipe_of_the_documentation(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "GUARD.md").read_text()
    recipe = text.partition("## Try both without a GPU")[2].split("```")[1].removeprefix("sh\n")
    recipe = recipe.replace("/tmp/", f"{tmp_path}/").replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["sh", "-ec", recipe], cwd=ROOT, capture_output=True, text=True, check=True, timeout=240
    )
    assert list(tmp_path.iterdir()) == []
    _, observe, act, split = re.split(r"== \w+\n", done.stdout)
    refused = {
        name: {step["what"]: step["refused"] for step in map(json.loads, lines.splitlines())}
        for name, lines in (("observe", observe), ("raise", act), ("split", split))
    }
    assert set(refused["split"].values()) == {None}
    # 8 * 64 heads * 3,081 rows * 256 + 1 MiB, and what 394 MiB - 8 MiB have for it
    assert "with size 404881408 and alignment 16, but only 404750336" in refused["observe"]["3081"]
    assert "give the workspace 2,561,671,168 bytes" in refused["raise"]["12288"]
    assert [refused[name]["3080"] for name in refused] == [None, None, None]


def test_layout_c_on_the_newest_release() -> None:
    if not NEWEST.exists():
        reason = f"{NEWEST.relative_to(ROOT)} is missing: make test builds it"
        if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    done = demo("--once", "--layout", "C", "--python", str(NEWEST))
    assert done.returncode == 0, done.stdout + done.stderr
    # Layout C keeps its counter elsewhere: 3,081 rows fit, 3,144 would too.
    assert "step of  3,081 tokens: done" in done.stdout
    assert "first refused step: 12,288 tokens (threshold 3,144)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--layout", "C"], "carves by layout B, not C"),
        (["--layout", "D"], "--layout is A, B or C, got 'D'"),
        (["--listen", "19456"], "is not host:port"),
        (["--python", "/nonexistent/python"], "/nonexistent/python"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    done = demo("--once", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
