"""The board of a run and the post-mortem: what is left behind, and what is said of it."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_process import Ended, Run, slots

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = "import os, sys, time\nfrom flashinfer import calls\n"
#: 8 * 64 heads * 3,081 rows * 256 + 1 MiB, of 394 MiB - 8 MiB of counters; layout B.
REFUSED = ("3,081", "404,881,408", "404,750,336")
#: 394 MiB + the slab.
ADVICE = "set: workspace ws0 to 818,020,352 B (780.1 MiB), or steps to at most 3,080 rows"


def dying_script(last: str) -> str:
    """A call that fits, one that does not, and an end."""
    return f"{CALLS}calls.decode(3_080)\ntry:\n    calls.decode(3_081)\nfinally:\n    {last}\n"


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("pass", 1),  # the error goes up, as in an engine
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 9)", 128 + 9),
        ("os.abort()", 128 + 6),
    ],
)
def test_overflow_death(
    last: str, code: int, run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    ended = run(sys.executable, script(dying_script(last)), PYTHONPATH=packages)
    assert ended.code == code
    told = ended.stderr[ended.stderr.index("ws-guard post-mortem") :]
    for text in (*REFUSED, "rank 0/0: trtllm_paged_attention_decode", ADVICE, " of 413,138,944 B"):
        assert text in told
    assert "exact: 64 heads x 3,081 rows x 1 query token, layout B" in told
    # The one that fitted is no trouble.
    assert told.count("trtllm_gen_softmax_workspace refused") == 1
    assert ended.kept_board == ended.board
    (slot,) = slots(ended.board)
    assert (slot.alive, slot.closed, len(slot.calls)) == (False, False, 2)


def test_events_are_told_though_the_process_was_quick(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    ended = run(sys.executable, script(dying_script("os._exit(1)")), PYTHONPATH=packages)
    events = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events] == ["overflow", "death"]


def test_ranks_that_met_the_same_stand_together(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    program = script(f"""
    {CALLS.splitlines()[0]}
    import multiprocessing
    def work(rows):
        from flashinfer import calls
        calls.decode(rows)
    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(n,)) for n in (3081, 3081, 16, 4096, 3081)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print([worker.exitcode for worker in workers])
    """)
    ended = run(sys.executable, program, PYTHONPATH=packages)
    assert (ended.code, ended.stdout) == (0, "[1, 1, 0, 1, 1]\n")
    told = ended.stderr[ended.stderr.index("ws-guard post-mortem") :]
    assert "rank 0/0-1, 0/4: trtllm" in told
    assert "rank 0/3: trtllm" in told
    # 394 MiB + 8 * 64 * 4,096 * 256 + 1 MiB: the largest of what was asked.
    assert "set: workspace ws0 to 951,058,432 B" in told
    assert told.count("set: ") == 1


def test_worker_that_lives_through_it_is_told_of(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    """The command ends in good order, and one call was refused all the same."""
    program = script("""
    from flashinfer import calls
    for _ in range(5):
        try:
            calls.decode(3081)
        except RuntimeError:
            pass
    """)
    ended = run(sys.executable, program, PYTHONPATH=packages)
    assert ended.code == 0
    (row,) = [
        line for line in ended.stderr.splitlines() if "404,881,408" in line and "{" not in line
    ]
    assert row.split()[6] == "5"


@pytest.mark.parametrize("last", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_without_trouble_nothing_is_said_nor_left(
    last: str, run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    program = script(f"{CALLS}calls.decode(3_080)\n{last}\n")
    ended = run(sys.executable, program, PYTHONPATH=packages)
    assert "post-mortem" not in ended.stderr
    # A killed worker has its line, of the exporter's.
    assert all(json.loads(line)["event"] == "death" for line in ended.stderr.splitlines())
    assert not Path(ended.board).exists()


def test_private_board_is_private(start: Callable[..., Run]) -> None:
    run = start("cat")
    found = os.stat(run.board)
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, os.geteuid())
    assert run.end(stdin="").code == 0
    assert not Path(run.board).exists()


@pytest.mark.parametrize("by", ["option", "environment"])
def test_board_of_the_user_stays(
    by: str,
    run: Callable[..., Ended],
    script: Callable[..., str],
    packages: str,
    tmp_path: Path,
) -> None:
    board = str(tmp_path / "board")
    asked: dict[str, object] = {"options": ("--board", board)}
    if by == "environment":
        asked = {"WS_GUARD_BOARD": board}
    dies = script(dying_script("os._exit(1)"))
    first = run(sys.executable, dies, PYTHONPATH=packages, LOCAL_RANK="1", **asked)
    assert (first.board, first.kept_board) == (board, None)
    assert "rank 0/1: trtllm" in first.stderr
    # What an earlier run left there is not told again.
    again = run(sys.executable, "-c", "pass", **asked)
    assert "post-mortem" not in again.stderr
    assert [slot.document["rank"] for slot in slots(board)] == ["1"]


def test_daemon_outlives_the_command(
    start: Callable[..., Run], script: Callable[..., str], packages: str
) -> None:
    program = script(f"""
    {CALLS.splitlines()[0]}
    from flashinfer import calls
    told, tell = os.pipe()
    if os.fork():
        print(os.read(told, 16).decode(), flush=True)
        sys.exit(5)
    os.setsid()
    if os.fork():
        os._exit(0)
    calls.decode(16)
    os.write(tell, b"%d" % os.getpid())
    for stream in (0, 1, 2):
        os.close(stream)
    time.sleep(600)
    """)
    run = start(sys.executable, program, PYTHONPATH=packages)
    daemon = int(run.line())
    try:
        ended = run.end()
        assert ended.code == 5
        assert "board kept, 1 of its workers still alive" in ended.stderr
        assert [(slot.pid, slot.alive) for slot in slots(run.board)] == [(daemon, True)]
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_killed_supervisor_does_not_take_the_command_along(start: Callable[..., Run]) -> None:
    run = start(sys.executable, "-u", "-c", "print(1); input(); print(2)")
    assert run.line() == "1"
    run.process.kill()
    stdout, _ = run.process.communicate("\n", timeout=60)
    assert stdout == "2\n"
