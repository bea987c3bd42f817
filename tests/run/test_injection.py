"""What the user has set stays as it is, and whatever fails in the watch harms nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_process import ROOT, RUN, Ended, clean_environment
from scripts import CALL, TELL

if TYPE_CHECKING:
    from collections.abc import Callable

INJECTION = ROOT / "ws_guard" / "injection"


def environment_of(*command: str, **environ: str) -> dict[str, str]:
    """The environment that a command gets, run for real."""
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
