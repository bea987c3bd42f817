"""How a command ends, and how its standard streams are: as without us."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_process import ROOT, RUN, Ended, Run, clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -KILL $$", 128 + 9),
        ("kill -TERM $$", 128 + 15),
        ("kill -SEGV $$", 128 + 11),
        ("exec sh -c 'exit 3'", 3),
    ],
)
def test_exit_code_is_the_commands(command: str, code: int, run: Callable[..., Ended]) -> None:
    ended = run("sh", "-c", command)
    assert (ended.code, ended.stdout, ended.stderr) == (code, "", "")
    assert not Path(ended.board).exists()


def test_arguments_arrive_as_given(run: Callable[..., Ended]) -> None:
    program = "import sys; print(sys.argv[1:])"
    arguments = ["--board", "x", "--", "-a b", "", "--json", "$HOME"]
    ended = run(sys.executable, "-c", program, *arguments)
    assert ended.stdout == f"{arguments}\n"


def refused(*command: str, **environ: str) -> str:
    """The one line of a run that never starts its command."""
    done = subprocess.run(
        [*RUN, *command],
        env=clean_environment(**environ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("ws-guard exporter")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_without_a_command() -> None:
    assert "Missing argument" in refused()
    assert "Missing argument" in refused("--")


def run_boards() -> list[Path]:
    return list(Path("/dev/shm").glob("ws_guard-run-*"))


def test_command_that_is_not_there(tmp_path: Path) -> None:
    before = set(run_boards())
    what = "; name a program behind the --"
    said = refused("--", "no-such-command", "x")
    assert said == f"ws-guard: no-such-command: command not found{what}"
    assert refused("--", f"{tmp_path}/none").endswith(f"/none: command not found{what}")
    assert refused("--", str(tmp_path)).endswith(f": Permission denied{what}")
    # Those of other tests, at work beside this one, are left as well.
    left, deadline = set(run_boards()) - before, time.monotonic() + 60
    while left & set(run_boards()):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_port_that_is_taken(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        line = refused("--listen", address, "--", "touch", str(marker))
    assert line.startswith(f"ws-guard: cannot listen on {address}: Address already in use")
    assert not marker.exists()


def test_bad_setting(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    assert "WS_GUARD_STRICT" in refused("--", "touch", str(marker), WS_GUARD_STRICT="perhaps")
    assert not marker.exists()


def test_apply_needs_an_engines_command(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    assert "no engine in the launch command" in refused("--apply", "--", "touch", str(marker))
    assert not marker.exists()


def test_apply_sets_what_the_plan_recommends(run: Callable[..., Ended], tmp_path: Path) -> None:
    """The reported launch: 394 MiB and 8 * 64 heads * 16,384 tokens * 256 + 1 MiB of slab."""
    config = {"num_attention_heads": 64, "index_topk": 2048, "kv_lora_rank": 512,
              "qk_rope_head_dim": 64, "num_hidden_layers": 78}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    installed = tmp_path / "site" / "vllm-0.26.0.dist-info" / "METADATA"
    installed.parent.mkdir(parents=True)
    installed.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    vllm = tmp_path / "bin" / "vllm"
    vllm.parent.mkdir()
    vllm.write_text('#!/bin/sh\necho "$VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"\n')
    vllm.chmod(0o755)
    command = f"{vllm} serve {tmp_path} -tp 8 -dcp 8 --max-num-batched-tokens 16384".split()
    path = str(installed.parents[1])
    ended = run(*command, options=("--apply",), PYTHONPATH=path)
    assert ended.stdout == f"{413_138_944 + 2_148_532_224}\n", ended.stderr


def test_apply_refuses_what_it_cannot_know_or_keep(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 64}')
    serve = ["vllm", "serve", str(tmp_path)]
    assert "vllm is not installed beside ws-guard" in refused("--apply", "--", *serve)
    installed = tmp_path / "site" / "vllm-0.26.0.dist-info" / "METADATA"
    installed.parent.mkdir(parents=True)
    installed.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    path = str(installed.parents[1])
    sparse = '{"num_attention_heads": 64, "kv_lora_rank": 512, "index_topk": 2048}'
    (tmp_path / "config.json").write_text(sparse)
    own = [
        "env",
        "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=413138944",
        *serve,
        "-tp",
        "8",
        "-dcp",
        "8",
    ]
    assert "the command sets VLLM_FLASHINFER" in refused("--apply", "--", *own, PYTHONPATH=path)


def test_empty_command_is_one_line() -> None:
    assert "nothing stands behind --" in refused("--", "")
    assert refused("") == "ws-guard: '': command not found; name a program behind the --"


def test_a_first_word_that_is_no_program_has_a_remedy() -> None:
    assert "set FOO before ws-guard run: FOO=1 ws-guard run -- CMD" in refused("FOO=1", "python")
    assert "write it without the quotes: ws-guard run -- no such" in refused("no such")


# -- standard streams ------------------------------------------------------------------------------


def test_standard_input_and_output(start: Callable[..., Run]) -> None:
    ended = start("sh", "-c", "cat; echo complaint >&2").end(stdin="one\ntwo\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "one\ntwo\n", "complaint\n")


def test_reader_that_leaves_ends_the_command(start: Callable[..., Run]) -> None:
    run = start("cat", "/dev/zero")
    assert run.process.stdout is not None
    run.process.stdout.close()
    # Python ignores SIGPIPE, which cat must not inherit.
    assert run.process.wait(timeout=60) == 128 + 13


def test_other_descriptors_arrive() -> None:
    ours, theirs = os.pipe()
    with open(ours) as reader:
        done = subprocess.run(
            [*RUN, "--", sys.executable, "-c", f"import os; os.write({theirs}, b'arrived')"],
            env=clean_environment(),
            cwd=ROOT,
            pass_fds=[theirs],
            capture_output=True,
            check=False,
        )
        os.close(theirs)
        assert (done.returncode, reader.read()) == (0, "arrived")


@pytest.mark.parametrize("closing", ["2>&-", "2>/dev/full"])
def test_without_a_standard_error(closing: str, packages: str, tmp_path: Path) -> None:
    """Events and post-mortem have nowhere to go: not to standard output, nor into the exit code."""
    dies = "from flashinfer import calls; calls.decode(12_288)"
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *RUN, "--", sys.executable, "-c", dies],
        env=clean_environment(PYTHONPATH=packages, WS_GUARD_BOARD=str(tmp_path / "board")),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_silent_without_a_terminal(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    done = subprocess.run(
        [*RUN, "--", "sh", "-c", f"touch {tmp_path}/started"],
        env=clean_environment(WS_GUARD_LISTEN=address),
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "started").exists()
