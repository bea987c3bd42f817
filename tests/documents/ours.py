"""`ws-guard` and `python`: they run, save for what takes minutes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import installing
from answers import become, refuse

#: Modules and scripts that are not run, and why; their flags are looked up in --help.
LONG = {
    r"benchmarks\..+": "measures for minutes",
    r"tests/.+": "fuzzes, or paints a GPU's memory",
    r"dashboards\.write": "writes into the tree: `make generated`",
    r"build|twine": "needs an index of packages",
    r"pytest": "the tests that it names are there",
}
#: Modules that are not ours, and need an engine.
OF_ENGINES = ("sglang.launch_server", "vllm.entrypoints.openai.api_server")

_WS_GUARD = (sys.executable, "-m", "ws_guard")


def ws_guard(arguments: list[str]) -> int:
    """Ours: it runs, but `serve` ends once it has answered, and `run` leaves no board behind.

    `demo` takes long: tests/test_demo.py plays it.
    """
    if arguments[:1] == ["serve"]:
        return _serve(arguments)
    if "--watch" in arguments:
        return _until_interrupted(arguments)
    if arguments[:1] == ["run"] and "--board" not in arguments:
        return _run_on_a_board_of_its_own(arguments)
    if arguments[:1] == ["demo"]:
        return _has_flags([*_WS_GUARD, "demo"], arguments[1:])
    return become(*_WS_GUARD, *arguments)


def _serve(arguments: list[str]) -> int:
    import ssl
    import urllib.request

    process = subprocess.Popen([*_WS_GUARD, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if not line.startswith("ws-guard exporter on "):
            return refuse(f"it does not serve: {line}{process.stderr.read()}")
        url = line.split(" on ")[1].split(",")[0]
        unchecked = ssl._create_unverified_context()  # noqa: S323 - a certificate of the stage
        with urllib.request.urlopen(f"{url}/livez", context=unchecked) as answer:  # noqa: S310 - ours
            answer.read()
        process.send_signal(signal.SIGTERM)
        return process.wait(20)
    finally:
        process.kill()
        process.communicate()


def _until_interrupted(arguments: list[str]) -> int:
    """Ctrl-C, once something is drawn: on a terminal, since elsewhere nothing is until the end."""
    ours, theirs = os.openpty()
    process = subprocess.Popen([*_WS_GUARD, *arguments], stdout=theirs)
    os.close(theirs)
    drawn = os.read(ours, 65_536)
    process.send_signal(signal.SIGINT)
    code = process.wait(20)
    os.close(ours)
    # The last verdict: 0 or 1.
    return 0 if drawn and code in (0, 1) else refuse(f"ended with {code}: {drawn!r}")


def _run_on_a_board_of_its_own(arguments: list[str]) -> int:
    environ = {key: value for key, value in os.environ.items() if key != "WS_GUARD_BOARD"}
    done = subprocess.run(
        [*_WS_GUARD, *arguments], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    print(done.stdout, end="", flush=True)
    for board in set(re.findall(r"/dev/shm/ws_guard-run-\w+", done.stdout)):
        # It is there only where a call did not fit.
        shutil.rmtree(board, ignore_errors=True)
    return done.returncode


def python(arguments: list[str]) -> int:
    """Python itself, or a look at what it would start."""
    name = arguments[1] if arguments[:1] == ["-m"] else (arguments or [""])[0]
    rest = arguments[2:] if arguments[:1] == ["-m"] else arguments[1:]
    if name == "pip":
        return installing.pip(rest)
    return look_at(name, rest) if is_long(name) else become(sys.executable, *arguments)


def is_long(name: str) -> bool:
    """Whether a module or script is one that is only looked at."""
    return any(re.fullmatch(pattern, name) for pattern in LONG)


def look_at(name: str, rest: list[str]) -> int:
    """That a module or script is there, and has the flags that it is given."""
    if name == "pytest":
        paths = [each.partition("::")[0] for each in rest if "/" in each]
        missing = [path for path in paths if not Path(path).exists()]
        return refuse(f"no such tests: {missing}") if missing else 0
    if name in ("build", "twine"):
        return 0
    is_script = name.endswith(".py")
    if not (Path(name).exists() if is_script else find_spec(name)):
        return refuse(f"there is no {name}")
    return _has_flags([sys.executable, *([name] if is_script else ["-m", name])], rest)


def _has_flags(command: list[str], arguments: list[str]) -> int:
    flags = [each.partition("=")[0] for each in arguments if each.startswith("-")]
    if not flags:
        return 0
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    strange = [each for each in flags if not re.search(rf"(?<![\w-]){each}(?![\w-])", told.stdout)]
    return refuse(f"no {strange} in: {told.stdout}{told.stderr}") if strange else 0
