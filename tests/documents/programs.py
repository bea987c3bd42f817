"""The programs that the documents' commands name: programs.py NAME ARGUMENT...

Those of ours run. What needs a network, a cluster, an engine, a daemon or hours does not: `REASONS`
says why, and what is checked instead. A program that is not here does not exist for the documents.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import cluster
import installing

#: Why a program is not run as written.
REASONS = {
    "conda": "needs an index of packages: requirements, extras and options are checked",
    "docker": "needs a daemon: files, services and build arguments are checked",
    "git": "needs a network: nothing but its subcommand is checked",
    "helm": "needs a cluster: chart and values are checked here, and rendered in tests/observability",
    "htpasswd": "asks a person for a password: it writes the user, with a password of ours",
    "kubectl": "needs a cluster: containers and labels are checked; what it executes runs here",
    "make": "builds environments: `make --dry-run` runs",
    "pip": "needs an index of packages: requirements, extras and options are checked",
    "pipx": "as pip",
    "sglang": "needs the engine: its settings are checked",
    "uv": "as pip",
    "vllm": "needs the engine: its settings are checked",
}
#: Modules and scripts that take minutes, a GPU, or an index; their flags are looked up in --help.
LONG = {
    r"benchmarks\..+": "measures for minutes",
    r"tests/.+": "fuzzes, or paints a GPU's memory",
    r"dashboards\.write": "writes into the tree: `make generated`",
    r"build|twine": "needs an index of packages",
    r"pytest": "the tests that it names are there",
}
#: Modules that are not ours, and need an engine.
OF_ENGINES = ("sglang.launch_server", "vllm.entrypoints.openai.api_server")


class Wrong(Exception):  # noqa: N818 - an answer, not an error of ours
    """A command that would not do what the document says."""


def pip(arguments: list[str]) -> int:
    """`pip install` and `uninstall`."""
    return installing.pip(arguments)


def ws_guard(arguments: list[str]) -> int:
    """Ours: it runs, but `serve` ends once it has answered, and `run` leaves no board behind."""
    if arguments[:1] == ["serve"]:
        return _serve(arguments)
    if "--watch" in arguments:
        return _until_interrupted(arguments)
    if arguments[:1] == ["run"] and "--board" not in arguments:
        return _run_on_a_board_of_its_own(arguments)
    os.execv(sys.executable, [*_WS_GUARD, *arguments])


_WS_GUARD = [sys.executable, "-m", "ws_guard"]


def _serve(arguments: list[str]) -> int:
    process = subprocess.Popen([*_WS_GUARD, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if not line.startswith("ws-guard exporter on "):
            raise Wrong(f"it does not serve: {line}{process.stderr.read()}")
        url = line.split(" on ")[1].split(",")[0]
        unchecked = ssl._create_unverified_context()  # noqa: S323 - a certificate of the stage
        with urllib.request.urlopen(f"{url}/livez", context=unchecked) as answer:  # noqa: S310
            answer.read()
        process.send_signal(signal.SIGTERM)
        return process.wait(20)
    finally:
        process.kill()
        process.communicate()


def _until_interrupted(arguments: list[str]) -> int:
    process = subprocess.Popen([*_WS_GUARD, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    # It has drawn once; Ctrl-C is how it ends.
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    return process.returncode


def _run_on_a_board_of_its_own(arguments: list[str]) -> int:
    environ = {key: value for key, value in os.environ.items() if key != "WS_GUARD_BOARD"}
    done = subprocess.run(
        [*_WS_GUARD, *arguments], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    print(done.stdout, end="", flush=True)
    for board in set(re.findall(r"/dev/shm/ws_guard-run-\w+", done.stdout)):
        shutil.rmtree(board)
    return done.returncode


def python(arguments: list[str]) -> int:
    """Python itself, save for what takes long."""
    name = arguments[1] if arguments[:1] == ["-m"] else (arguments or [""])[0]
    if name == "pip":
        return pip(arguments[2:])
    for pattern in LONG:
        if re.fullmatch(pattern, name):
            return check_long(name, arguments[2:] if arguments[0] == "-m" else arguments[1:])
    os.execv(sys.executable, [sys.executable, *arguments])


def check_long(name: str, rest: list[str]) -> int:
    """That a module or script is there, and has the flags that it is given."""
    if name == "pytest":
        missing = [each for each in rest if "/" in each and not Path(each.partition("::")[0]).exists()]
        return _no(f"no such tests: {missing}") if missing else 0
    if name in ("build", "twine"):
        return 0
    is_script = name.endswith(".py")
    if not (Path(name).exists() if is_script else find_spec(name)):
        return _no(f"there is no {name}")
    flags = [each.partition("=")[0] for each in rest if each.startswith("-")]
    if not flags:
        return 0
    command = [sys.executable, *([name] if is_script else ["-m", name]), "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    unknown = [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", told.stdout)]
    return _no(f"{name} has no {unknown}: {told.stdout}{told.stderr}") if unknown else 0


def make(arguments: list[str]) -> int:
    """`make --dry-run`: targets and variables are read by make itself."""
    command = ["make", "--dry-run", *arguments]
    environ = os.environ | {"PATH": os.environ["DOCUMENTED_PATH"]}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return done.returncode or 0 if done.returncode == 0 else _no(done.stderr)


def curl(arguments: list[str]) -> int:
    """A running exporter's answer; 404 is none. The real curl, where there is one, fetches it again."""
    unknown = [each for each in arguments if each.startswith("-") and each not in ("-s", "-f", "-sf")]
    if unknown:
        return _no(f"curl {unknown}: not looked at by these tests")
    for url in (each for each in arguments if not each.startswith("-")):
        try:
            with urllib.request.urlopen(url) as answer:  # noqa: S310 - of the stage
                body = answer.read().decode()
        except urllib.error.HTTPError as error:
            # Not ready is an answer.
            if error.code != 503:  # noqa: PLR2004
                return _no(f"{url}: {error.code}")
            body = error.read().decode()
        print(body)
    found = shutil.which("curl", path=os.environ["DOCUMENTED_PATH"])
    return subprocess.run([found, *arguments], stdout=subprocess.DEVNULL, check=False).returncode if found else 0


def engine(arguments: list[str]) -> int:
    """`vllm serve`, `sglang serve`: what ws_guard would read in such a process."""
    from ws_guard.settings import require_settings

    require_settings()
    return 0 if arguments[:1] in ([], ["serve"]) else _no(f"not looked at by these tests: {arguments}")


def htpasswd(arguments: list[str]) -> int:
    """`htpasswd -nB USER`, to standard output."""
    import bcrypt

    options, user = arguments
    if set(options) != set("-nB"):
        return _no(f"htpasswd {options}: not looked at by these tests")
    print(f"{user}:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    return 0


def git(arguments: list[str]) -> int:
    """`git clone`."""
    return 0 if arguments[:1] == ["clone"] else _no(f"not looked at by these tests: {arguments}")


def _no(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


PROGRAMS: dict[str, Callable[[list[str]], int]] = {
    "conda": installing.conda,
    "curl": curl,
    "docker": cluster.docker,
    "git": git,
    "helm": cluster.helm,
    "htpasswd": htpasswd,
    "kubectl": cluster.kubectl,
    "make": make,
    "pip": pip,
    "pipx": installing.pipx,
    "python": python,
    "python3": python,
    "sglang": engine,
    "uv": installing.uv,
    "vllm": engine,
    "ws-guard": ws_guard,
}


def main() -> NoReturn:
    """One program, as the shell starts it."""
    try:
        sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]))
    except Wrong as wrong:
        sys.exit(_no(str(wrong)))


if __name__ == "__main__":
    main()
