"""Signals reach the command once, by whatever way they come; the dead are reaped."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from run_process import ROOT, RUN, Ended, Run, clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable

#: Tells each signal that it gets, and ends at SIGUSR2.
LISTENER = """
import os, signal, sys
told = []
def tell(number, frame):
    told.append(signal.Signals(number).name)
    print(told[-1], flush=True)
for name in "SIGINT SIGTERM SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM".split():
    signal.signal(getattr(signal, name), tell)
print("listening", flush=True)
while "SIGUSR2" not in told:
    signal.pause()
sys.exit(len(told))
"""


def test_signals_are_passed_on(start: Callable[..., Run], script: Callable[..., str]) -> None:
    run = start(sys.executable, script(LISTENER))
    assert run.line() == "listening"
    names = ["SIGINT", "SIGTERM", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGUSR1", "SIGUSR2"]
    for name in names:
        run.process.send_signal(getattr(signal, name))
        assert run.line() == name
    ended = run.end()
    assert (ended.code, ended.stdout, ended.stderr) == (len(names), "", "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_command_that_dies_of_it(name: str, start: Callable[..., Run]) -> None:
    run = start("sh", "-c", "echo ready; exec sleep 600")
    assert run.line() == "ready"
    number = getattr(signal, name)
    run.process.send_signal(number)
    assert run.end().code == 128 + number


def test_command_that_ignores_sigterm(start: Callable[..., Run]) -> None:
    run = start("sh", "-c", "trap '' TERM; echo $$; read line; echo $line; kill -KILL $$")
    pid = int(run.line())
    for _ in range(3):
        run.process.send_signal(signal.SIGTERM)
    assert os.path.exists(f"/proc/{pid}")
    ended = run.end(stdin="still here\n")
    assert (ended.code, ended.stdout) == (128 + 9, "still here\n")


def test_command_starts_with_the_signals_of_its_caller(run: Callable[..., Ended]) -> None:
    command = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]
    bare = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def masks(status: str) -> list[int]:
        # Without 32 and 33, glibc's own: its posix_spawn ignores them, whoever calls it.
        return [int(line.split()[1], 16) & (1 << 31) - 1 for line in status.splitlines()]

    assert masks(run(*command).stdout) == masks(bare)


def test_what_the_caller_ignores_stays_ignored() -> None:
    """`nohup ws-guard run ...`, and jobs of a shell without job control."""
    program = "import signal; print(signal.getsignal(signal.SIGHUP).name)"
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *RUN, "--", sys.executable, "-c", program],
        env=clean_environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    assert done.stdout == "SIG_IGN\n"


def replace_by(*command: str) -> None:
    """In a fork: become a run of the command."""
    os.chdir(ROOT)
    os.execve(sys.executable, [*RUN, "--", *command], clean_environment())  # noqa: S606 - ourselves


def test_key_reaches_the_command_once(script: Callable[..., str]) -> None:
    """Ctrl-C goes to the whole foreground group: passed on as well it would come twice."""
    pid, terminal = pty.fork()
    if not pid:
        replace_by(sys.executable, script(LISTENER))
    with open(terminal, "rb", buffering=0) as screen:
        shown = b""

        def until(text: bytes) -> None:
            nonlocal shown
            while text not in shown:
                shown += screen.read(1024)

        until(b"listening")
        # People are told where to look.
        assert b"ws-guard exporter on http://127.0.0.1:" in shown
        os.write(terminal, b"\x03")
        until(b"SIGINT")
        os.write(terminal, b"\x1c")
        until(b"SIGQUIT")
        os.kill(pid, signal.SIGUSR2)
        until(b"SIGUSR2")
        # SIGINT, SIGQUIT and SIGUSR2, each once.
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def test_command_has_the_terminal(script: Callable[..., str]) -> None:
    program = script("""
    import os
    print(os.tcgetpgrp(0) == os.getpgrp(), os.isatty(1), os.isatty(2), input(), flush=True)
    """)
    pid, terminal = pty.fork()
    if not pid:
        replace_by(sys.executable, program)
    with open(terminal, "rb", buffering=0) as screen:
        os.write(terminal, b"typed\n")
        shown = b""
        while b"True True True typed" not in shown:
            shown += screen.read(1024)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_orphans_that_come_to_us_are_reaped(script: Callable[..., str]) -> None:
    """As PID 1 of a container: here by a child that we have from before our own start."""
    program = script("""
    import os, sys
    def children_of(pid):
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as stat:
                    state, parent = stat.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == pid:
                yield int(name), state
    def others():
        return [child for child, _ in children_of(os.getppid()) if child != os.getpid()]
    print(len(others()), flush=True)
    sys.stdin.readline()
    while others():
        pass
    """)
    # The shell's background job becomes a child of `ws-guard run`, and ends while that waits.
    shell = 'sleep 600 & echo $!; exec "$@"'
    with subprocess.Popen(
        ["sh", "-c", shell, "sh", *RUN, "--", sys.executable, program],
        env=clean_environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        assert process.stdout.readline() == "1\n"
        os.kill(orphan, signal.SIGKILL)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(timeout=60) == 0
