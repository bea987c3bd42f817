"""`ws-guard explain` as a process: answers, exit codes, one line for every bad input."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import pty
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from messages import CRASH

from ws_guard.explain.logs import explain_log
from ws_guard.sizing import InputError

if TYPE_CHECKING:
    from pathlib import Path

EXPLAIN = [sys.executable, "-m", "ws_guard", "explain"]


def explain(*arguments: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*EXPLAIN, *arguments],
        input=b"" if given is None else given,
        capture_output=True,
        check=False,
        env={**os.environ, "HF_HUB_CACHE": "/nowhere"},
    )


def test_keys_of_the_contract(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(CRASH)
    done = explain(str(tmp_path / "log"), "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    (finding,) = json.loads(done.stdout)["findings"]
    keys = "ranks slab size available layouts workspace_bytes solutions overflow_threshold_batch"
    keys += " recommended_workspace_bytes env confidence notes"
    assert set(keys.split()) <= set(finding)
    assert {"num_qo_heads", "batch_size", "max_q_len"} <= set(finding["solutions"][0])
    assert isinstance(finding["workspace_bytes"], list)


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input(arguments: list[str]) -> None:
    packed = gzip.compress(CRASH.encode())
    for given in (CRASH.encode(), packed, bz2.compress(packed)):
        done = explain(*arguments, given=given)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b"CONSISTENT (more than one reading): trtllm_gen_softmax")


def test_nothing_known_is_a_no_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("INFO all is well\n")
    done = explain(str(tmp_path / "log"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"no known fault of a workspace in" in done.stderr
    as_json = explain(str(tmp_path / "log"), "--json")
    assert (as_json.returncode, json.loads(as_json.stdout)) == (1, {"findings": []})


#: Up to where a log's viewer may have cut the line: in the number, in the slab, before its name.
CUT_BEHIND = ("with size 16116", "memory for trtllm_gen", "Buffer overflow wh", "allocator.h:49")


@pytest.mark.parametrize("behind", CUT_BEHIND)
@pytest.mark.parametrize("end", ["", "\n", "\nINFO all is well\n"], ids=["", "line", "more"])
def test_a_line_that_was_cut_before_its_numbers(behind: str, end: str) -> None:
    line = CRASH[: CRASH.index(behind) + len(behind)] + end
    done = explain(given=f"INFO all is well\n{line}".encode())
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert b"a fault of a workspace is in standard input, but its line is cut" in done.stderr
    assert b"get the whole line" in done.stderr
    # Where the fault is told in full as well, the cut line is of no account.
    done = explain(given=f"{line}\n{CRASH}\n".encode())
    assert (done.returncode, done.stderr) == (0, b"")


def test_code_that_raises_the_fault_is_none() -> None:
    code = 'oss << "Buffer overflow when allocating memory for " << name;\n'
    assert b"no known fault" in explain(given=code.encode()).stderr


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    often = CRASH.encode()
    for _ in range(5):
        often = gzip.compress(often)
    (tmp_path / "often.gz").write_bytes(often)
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b" + bytes(range(64)))
    (tmp_path / "short.gz").write_bytes(gzip.compress(os.urandom(1 << 16))[: 1 << 15])
    (tmp_path / "nothing").touch()
    for arguments, words in (
        ([str(tmp_path / "often.gz")], b"unpack it first"),
        ([str(tmp_path / "none")], b"cannot be read: No such file"),
        ([str(tmp_path)], b"is a directory: name a log file, or pass --board"),
        ([str(tmp_path / "zst")], b"zstd -dc FILE | ws-guard explain -"),
        ([str(tmp_path / "broken.gz")], b"cannot be unpacked"),
        ([str(tmp_path / "short.gz")], b"short.gz is an archive that ends early, with no known"),
        ([str(tmp_path / "nothing")], b"nothing is empty: look whether the command that writes"),
        ([str(tmp_path / "zst"), "--board", str(tmp_path)], b"exclude each other"),
        (["--board", str(tmp_path / "none")], b"there is no such directory"),
        ([str(tmp_path / "a"), str(tmp_path / "b")], b"unexpected extra argument"),
    ):
        done = explain(*arguments)
        assert (done.returncode, done.stdout) == (2, b"")
        assert words in done.stderr, done.stderr
        assert done.stderr.count(b"\n") == 1


def test_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "log").touch(0o000)
    user = os.geteuid()
    if user == 0:
        # Root may read every file: then it is nobody who asks.
        os.seteuid(65_534)
    try:
        with pytest.raises(InputError, match="cannot be read: Permission denied"):
            explain_log(str(tmp_path / "log"))
    finally:
        os.seteuid(user)


def test_packed_log_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress(f"{CRASH}\n{os.urandom(1 << 20).hex()}".encode())
    (tmp_path / "log").write_bytes(whole[: len(whole) // 2])
    done = explain(str(tmp_path / "log"))
    assert (done.returncode, done.stderr) == (0, b"")


def test_terminal_is_no_log_but_gets_progress() -> None:
    ours, theirs = pty.openpty()
    try:
        asked = subprocess.run(EXPLAIN, stdin=theirs, capture_output=True, check=False)
        assert asked.returncode == 2
        assert b"no log: name a file, pipe one in, or pass --board" in asked.stderr
        command = [*EXPLAIN, "-"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=theirs
        ) as slow:
            assert slow.stdin is not None
            # A pipe that takes its time, until the progress line appears.
            while slow.poll() is None and not select.select([ours], [], [], 0.1)[0]:
                slow.stdin.write(f"{CRASH}\n".encode())
                slow.stdin.flush()
            assert b"reading: 0 MiB" in os.read(ours, 4096)
            slow.stdin.close()
            assert slow.wait() == 0
    finally:
        os.close(ours)
        os.close(theirs)


def test_imports_neither_the_exporter_nor_torch(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(CRASH)
    script = (
        f"import sys; from ws_guard.cli import run; run(['explain', {str(tmp_path / 'log')!r}]); "
        "heavy = {'torch', 'flashinfer', 'fastapi', 'prometheus_client', 'ws_guard.probe', "
        "'ws_guard.exporter', 'ws_guard.contract'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
