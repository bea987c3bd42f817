"""Workers as processes: ended, forked, spawned, killed; each has a slot of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from fresh_python import environment, python
from slot_views import ReadSlot

if TYPE_CHECKING:
    from pathlib import Path


def test_slot_is_gone_after_a_clean_exit(board: str, package: Path) -> None:
    program = "import sys; from ws_guard.probe import install; install(board=sys.argv[1])"
    assert python(program, board, isolated=True, packages=str(package.parent)) == []
    assert os.listdir(board) == []


def test_child_forked_without_multiprocessing(board: str, package: Path) -> None:
    """A plain `os.fork` child that ends by `sys.exit` runs atexit, with a slot of its own."""
    program = """
import os, sys
from ws_guard.probe import install
probe = install(board=sys.argv[1])
pid = os.fork()
if pid:
    print(os.waitpid(pid, 0)[1], len(os.listdir(sys.argv[1])), flush=True)
    sys.exit()
before = len(os.listdir(sys.argv[1]))
probe._recorder.attach_if_pending()
print(before, len(os.listdir(sys.argv[1])), flush=True)
"""
    told = python(program, board, isolated=True, packages=str(package.parent))
    assert told == ["1 2", "0 1"]
    assert os.listdir(board) == []


def test_spawned_workers_have_slots_of_their_own(tmp_path: Path, board: str) -> None:
    script = tmp_path / "spawn.py"
    script.write_text("""
import multiprocessing, os, sys
from ws_guard.probe import install

def work(path, pipe):
    install(board=path, rank=pipe.recv())
    pipe.send(os.getpid())
    pipe.recv()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    install(board=sys.argv[1])
    ends, workers = [], []
    for rank in (1, 2):
        ours, theirs = context.Pipe()
        workers.append(context.Process(target=work, args=(sys.argv[1], theirs)))
        workers[-1].start()
        ours.send(rank)
        ends.append(ours)
    pids = {os.getpid(), *(end.recv() for end in ends)}
    print({int(name.split(".")[0]) for name in os.listdir(sys.argv[1])} == pids)
    for end, worker in zip(ends, workers):
        end.send(None)
        worker.join()
    print([worker.exitcode for worker in workers], len(os.listdir(sys.argv[1])))
""")
    program = f"import runpy, sys; sys.argv = [{str(script)!r}, sys.argv[1]]; "
    program += f"runpy.run_path({str(script)!r}, run_name='__main__')"
    assert python(program, board) == ["True", "[0, 0] 1"]
    assert os.listdir(board) == []


def test_worker_that_is_killed_leaves_a_dead_slot(board: str, slot: ReadSlot) -> None:
    program = (
        "import sys; from ws_guard.probe import install; install(board=sys.argv[1]);"
        "print('attached', flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-S", "-c", program, board],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"attached\n"
        assert slot().alive
        worker.kill()
    deadline = time.monotonic() + 60
    while slot().alive and time.monotonic() < deadline:
        pass
    assert (slot().alive, slot().closed, slot().pid) == (False, False, worker.pid)
