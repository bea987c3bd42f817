"""Every way to start a Python: each meets the probe, and none of them notices."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_process import Ended, Run, slots
from scripts import CALL, TELL

if TYPE_CHECKING:
    from collections.abc import Callable


#: Where pyenv keeps interpreters of other ages.
VERSIONS = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"


def interpreter(version: str) -> str:
    found = VERSIONS / version / "bin" / "python"
    if not found.exists():
        pytest.skip(f"there is no {found}")
    return str(found)


def test_script(run: Callable[..., Ended], script: Callable[..., str], packages: str) -> None:
    ended = run(sys.executable, script(CALL + TELL), PYTHONPATH=packages)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "True\n", "")
    assert not Path(ended.board).exists()


def test_module(run: Callable[..., Ended], script: Callable[..., str], packages: str) -> None:
    folder = Path(script(CALL + TELL, "tool/__main__.py")).parents[1]
    path = os.pathsep.join((packages, str(folder)))
    assert run(sys.executable, "-m", "tool", PYTHONPATH=path).stdout == "True\n"


def test_console_script(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    tool = script(f"#!{sys.executable}\n{CALL}{TELL}", "bin/tool")
    Path(tool).chmod(0o755)
    path = os.pathsep.join((str(Path(tool).parent), os.environ["PATH"]))
    assert run("tool", PYTHONPATH=packages, PATH=path).stdout == "True\n"


def test_what_a_shell_and_an_exec_start(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    program = script(f"""
    import os, sys
    if sys.argv[1:] == ["exec"]:
        os.execv(sys.executable, [sys.executable, __file__])
    exec({CALL + TELL!r})
    """)
    command = f"{sys.executable} {program} exec; echo; exec {sys.executable} {program}"
    ended = run("sh", "-c", command, PYTHONPATH=packages)
    assert (ended.code, ended.stdout) == (0, "True\n\nTrue\n")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(
    method: str, start: Callable[..., Run], script: Callable[..., str], packages: str
) -> None:
    """Two workers: ranks by their order, the parent that only imports FlashInfer is none."""
    program = script(f"""
    import multiprocessing, os, sys
    import flashinfer.jit.core

    def work(pipe):
        from flashinfer import calls
        calls.decode(16)
        pipe.send(os.getpid())
        pipe.recv()

    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        pipes, workers = [], []
        for _ in range(2):
            ours, theirs = context.Pipe()
            workers.append(context.Process(target=work, args=(theirs,)))
            workers[-1].start()
            pipes.append(ours)
        print(*[pipe.recv() for pipe in pipes], flush=True)
        sys.stdin.readline()
        for pipe, worker in zip(pipes, workers):
            pipe.send(None)
            worker.join()
        sys.exit(sum(worker.exitcode for worker in workers))
    """)
    run = start(sys.executable, program, PYTHONPATH=packages)
    pids = [int(pid) for pid in run.line().split()]
    told = {slot.pid: slot.document for slot in slots(run.board)}
    assert {pid: told[pid]["rank"] for pid in told} == {pids[0]: "0", pids[1]: "1"}
    assert {document["contract"] for document in told.values()} == {"verified"}
    ended = run.end(stdin="\n")
    assert (ended.code, ended.stderr) == (0, "")
    assert not Path(run.board).exists()


def test_plain_fork(run: Callable[..., Ended], script: Callable[..., str], packages: str) -> None:
    program = script(f"""
    import os, sys
    import flashinfer.jit.core
    if child := os.fork():
        sys.exit(os.waitpid(child, 0)[1])
    exec({CALL + TELL!r})
    """)
    ended = run(sys.executable, program, PYTHONPATH=packages)
    assert (ended.code, ended.stdout) == (0, "True\n")


@pytest.mark.parametrize("version", ["3.10.13", "3.12.1", "3.13.0"])
def test_interpreter_without_ws_guard(
    version: str, run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    """ws_guard is lent to it; a worker needs nothing else."""
    python, only_flashinfer = interpreter(version), packages.split(os.pathsep)[0]
    ended = run(python, script(CALL + TELL), PYTHONPATH=only_flashinfer)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "True\n", "")


@pytest.mark.parametrize("version", ["2.7.18", "3.6.15", "3.8.18", "3.9.18"])
def test_interpreter_that_is_too_old(version: str, run: Callable[..., Ended]) -> None:
    program = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    ended = run(interpreter(version), "-c", program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, f"{version}\n", "")


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_flags_that_forbid_it(
    flag: str, run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    program = script(f"""
    import sys
    sys.path[:0] = {packages.split(os.pathsep)!r}
    from flashinfer import calls
    calls.decode(16)
    """)
    ended = run(sys.executable, flag, program, PYTHONPATH=packages)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
