"""Which processes meet the probe, and that none of them notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from run_process import ROOT, Ended, Run, slots

if TYPE_CHECKING:
    from collections.abc import Callable

INJECTION = ROOT / "ws_guard" / "injection"
#: Where pyenv keeps interpreters of other ages.
VERSIONS = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
#: One native call, then what the board holds: (pid, whether the slot is this process's).
CALL = """
import os
from flashinfer import calls
calls.decode(16)
"""
TELL = """
import os
for name in sorted(os.listdir(os.environ["WS_GUARD_BOARD"])):
    print(int(name.split(".")[0]) == os.getpid())
"""


def interpreter(version: str) -> str:
    found = VERSIONS / version / "bin" / "python"
    if not found.exists():
        pytest.skip(f"there is no {found}")
    return str(found)


# -- every way to start a Python -------------------------------------------------------------------


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


# -- who attaches ----------------------------------------------------------------------------------


def test_importing_flashinfer_opens_no_slot(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    """API servers and engine cores import it too."""
    program = script("""
    import os
    import flashinfer.jit.core as core
    core.JitSpec("batch_decode").build_and_load()
    print(os.path.exists(os.environ["WS_GUARD_BOARD"]), os.listdir(os.environ["WS_GUARD_BOARD"]))
    """)
    assert run(sys.executable, program, PYTHONPATH=packages).stdout == "True []\n"


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_whoever_installs_the_probe_is_the_only_one(
    when: str, run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    """As an engine's plugin does: before FlashInfer, after its import, after its first call."""
    install = "import ws_guard; ws_guard.install(engine=3, rank=5)\n"
    steps = [CALL, TELL, SLOT]
    steps.insert({"before": 0, "between": 0, "after": 1}[when], install)
    if when == "between":
        steps.insert(0, "import flashinfer.jit.core\n")
    ended = run(sys.executable, script("".join(steps)), PYTHONPATH=packages)
    told = ["3", "5"] if when != "after" else ["0", "0"]
    assert ended.stdout == f"True\n{[*told, 1]}\n"
    # The later one is told that it is.
    assert ("already installed, arguments ignored" in ended.stderr) == (when == "after")


#: Labels of this process's slot, and the calls that it counts.
SLOT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from run_process import slots
(slot,) = slots(os.environ["WS_GUARD_BOARD"])
print([slot.document["engine"], slot.document["rank"], sum(row.eager for row in slot.rows)])
"""


def test_rank_that_a_launcher_tells(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    ended = run(sys.executable, script(CALL + SLOT), PYTHONPATH=packages, LOCAL_RANK="6")
    assert ended.stdout == "['0', '6', 1]\n"


def test_switched_off(run: Callable[..., Ended], script: Callable[..., str], packages: str) -> None:
    program = script(CALL + "import sys; print('ws_guard' in sys.modules)")
    ended = run(sys.executable, program, PYTHONPATH=packages, WS_GUARD_ENABLED="0")
    assert (ended.code, ended.stdout) == (0, "False\n")


def test_exporter_beside_it(
    start: Callable[..., Run], script: Callable[..., str], packages: str
) -> None:
    program = script(f"{CALL}print(os.getpid(), flush=True); input()")
    run = start(sys.executable, program, PYTHONPATH=packages)
    pid = int(run.line())
    told: list[Any] = []
    while not told:  # its reads of the board are half a second apart
        with urllib.request.urlopen(f"{run.url}/api/v1/workers", timeout=30) as answer:  # noqa: S310
            told = json.load(answer)["workers"]
    assert [(worker["pid"], worker["alive"]) for worker in told] == [(pid, True)]
    assert run.end(stdin="\n").code == 0


# -- what the user set -----------------------------------------------------------------------------


def environment_of(*command: str, **environ: str) -> dict[str, str]:
    """The environment that a command gets, run for real."""
    from run_process import RUN, clean_environment

    program = "import json, os; print(json.dumps(dict(os.environ)))"
    done = subprocess.run(
        [*RUN, *command, "--", "/usr/bin/env", sys.executable, "-S", "-c", program],
        env=clean_environment(**environ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, str] = json.loads(done.stdout)
    return told


def test_the_environment_is_the_users(tmp_path: Path) -> None:
    theirs = {"PYTHONPATH": str(ROOT), "PYTHONSTARTUP": "/x", "WS_GUARD_STRICT": "1", "FOO": "a=b"}
    board = str(tmp_path / "board")
    told = environment_of("--board", board, **theirs)
    assert told["PYTHONPATH"] == f"{INJECTION}{os.pathsep}{ROOT}"
    assert told["WS_GUARD_BOARD"] == board
    assert {name: told[name] for name in theirs if name != "PYTHONPATH"} == {
        name: theirs[name] for name in theirs if name != "PYTHONPATH"
    }


def test_empty_pythonpath_adds_no_working_directory() -> None:
    assert environment_of(PYTHONPATH="")["PYTHONPATH"] == str(INJECTION)


def test_relative_board_stays_where_it_is(tmp_path: Path) -> None:
    relative = os.path.relpath(tmp_path / "board", ROOT)
    assert environment_of(WS_GUARD_BOARD=relative)["WS_GUARD_BOARD"] == str(tmp_path / "board")


def test_their_sitecustomize_runs(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    theirs = Path(script("import sys; sys.hello = __file__", "site/sitecustomize.py"))
    program = script(f"import sys; print(sys.hello, sys.modules['sitecustomize'].__file__)\n{CALL}")
    path = os.pathsep.join((str(theirs.parent), packages))
    ended = run(sys.executable, program, PYTHONPATH=path)
    assert (ended.stdout, ended.stderr) == (f"{theirs} {theirs}\n", "")


@pytest.mark.parametrize(
    "source",
    ["raise ValueError('theirs')", "import no_such_module", "import sys; sys.exit(4)", "def"],
)
def test_their_sitecustomize_fails_as_ever(
    source: str, run: Callable[..., Ended], script: Callable[..., str]
) -> None:
    theirs = Path(script(source, "site/sitecustomize.py")).parent
    command = [sys.executable, "-c", "print('on')"]
    path = os.pathsep.join((str(theirs), str(ROOT)))
    bare = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    ended = run("env", f"PYTHONPATH={INJECTION}{os.pathsep}{path}", *command)
    assert (ended.code, ended.stdout) == (bare.returncode, bare.stdout)
    # A traceback has our frames in it; `site` itself shows none.
    assert first_and_last(ended.stderr) == first_and_last(bare.stderr)


def first_and_last(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[:1] + lines[-1:]


def test_another_that_chains_as_we_do(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    """As ddtrace does it; whoever is first, everyone has a turn, once."""
    chaining = """
    import os, sys
    print("chaining")
    here = os.path.dirname(__file__)
    sys.path.remove(here)
    del sys.modules["sitecustomize"]
    import sitecustomize
    sys.path.insert(0, here)
    """
    one = str(Path(script(chaining, "one/sitecustomize.py")).parent)
    last = str(Path(script("print('last')", "last/sitecustomize.py")).parent)
    for order in ([str(INJECTION), one, last], [one, str(INJECTION), last]):
        path = os.pathsep.join([*order, packages])
        command = ["env", f"PYTHONPATH={path}", sys.executable, script(CALL + TELL)]
        assert run(*command).stdout == "chaining\nlast\nTrue\n"


def test_a_process_that_never_meets_flashinfer_loads_nothing(run: Callable[..., Ended]) -> None:
    program = (
        "import sys; import importlib.util; importlib.util.find_spec('flashinfer'); "
        "print(sorted(name for name in sys.modules if name.startswith('ws_guard')))"
    )
    assert run(sys.executable, "-c", program).stdout == "['ws_guard_watch']\n"
    # Nothing but what the interpreter has loaded by itself, wherever it comes from.
    lean = "import sys; print(sorted(sys.modules))"
    bare = [sys.executable, "-c", lean]
    done = subprocess.run(
        bare,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    added = set(json.loads(run(*bare).stdout.replace("'", '"')))
    added -= set(json.loads(done.stdout.replace("'", '"')))
    assert added == {"sitecustomize", "ws_guard_watch"}


def test_ws_guard_that_does_not_load_harms_nobody(
    run: Callable[..., Ended], script: Callable[..., str], packages: str
) -> None:
    broken = Path(script("raise RuntimeError('broken')", "broken/ws_guard/__init__.py")).parents[1]
    path = os.pathsep.join((str(INJECTION), str(broken), packages))
    ended = run("env", f"PYTHONPATH={path}", sys.executable, script(CALL + "print('called')"))
    assert (ended.code, ended.stdout) == (0, "called\n")
    (line,) = ended.stderr.splitlines()
    assert line.endswith("this process is not watched: RuntimeError: broken")
