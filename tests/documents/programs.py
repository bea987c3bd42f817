"""The programs that the documents' commands name: programs.py NAME ARGUMENT...

Ours run. What needs a network, a cluster, an engine or a daemon does not: `REASONS` says why, and
what is checked instead. A program that is not here does not exist for the documents.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import cluster
import installing
import ours
from answers import become, refuse, unknown

#: Why a program is not run as written.
REASONS = {
    "conda": "needs an index of packages: requirements, extras and options are checked",
    "curl": "may not be there: the exporter of these tests is asked by other means",
    "docker": "needs a daemon: files, services and build arguments are checked",
    "git": "needs a network: nothing but its subcommand is checked",
    "helm": "needs a cluster: its values are checked here, and rendered in tests/observability",
    "htpasswd": "asks a person for a password: it writes the user, with a password of ours",
    "install": "needs root for another's group: it is made for this user's where that is missing",
    "kubectl": "needs a cluster: containers and labels are checked; what it executes runs here",
    "make": "builds environments: `make --dry-run` runs",
    "pip": "needs an index of packages: requirements, extras and options are checked",
    "pipx": "as pip",
    "sglang": "needs the engine: its settings are checked",
    "uv": "as pip",
    "vllm": "needs the engine: its settings are checked",
}


def make(arguments: list[str]) -> int:
    """`make --dry-run`: targets and variables are read by make itself."""
    done = subprocess.run(
        ["make", "--dry-run", *arguments],
        env=os.environ | {"PATH": os.environ["DOCUMENTED_PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    return refuse(done.stderr) if done.returncode else 0


def curl(arguments: list[str]) -> int:
    """What a running exporter answers; not found is no answer, not ready is one."""
    import urllib.error
    import urllib.request

    options = {each for each in arguments if each.startswith("-")}
    if options - {"-s", "-f", "-sf"}:
        return unknown(f"curl {options}")
    (url,) = (each for each in arguments if each not in options)
    try:
        with urllib.request.urlopen(url) as answer:  # noqa: S310 - of the stage
            print(answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.read().decode())
        return 0 if error.code == 503 else refuse(f"{url}: {error.code}")
    return 0


def engine(arguments: list[str]) -> int:
    """`vllm serve`, `sglang serve`: what ws_guard would read in such a process."""
    from ws_guard.settings import require_settings

    require_settings()
    return 0 if arguments[:1] in ([], ["serve"]) else unknown(arguments)


def htpasswd(arguments: list[str]) -> int:
    """`htpasswd -nB USER`, to standard output."""
    import bcrypt

    options, user = arguments
    if set(options) != set("-nB"):
        return unknown(f"htpasswd {options}")
    print(f"{user}:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    return 0


def install(arguments: list[str]) -> int:
    """`install --directory`: beside the board of the stage, which has to stay as it is."""
    *options, directory = arguments
    mine = [each for each in options if os.geteuid() == 0 or not each.startswith("--group=")]
    found = shutil.which("install", path=os.environ["DOCUMENTED_PATH"]) or "install"
    return become(found, *mine, f"{directory}-made")


def git(arguments: list[str]) -> int:
    """`git clone`."""
    return 0 if arguments[:1] == ["clone"] else unknown(f"git {arguments}")


PROGRAMS: dict[str, Callable[[list[str]], int]] = {
    "conda": installing.conda,
    "curl": curl,
    "docker": cluster.docker,
    "git": git,
    "helm": cluster.helm,
    "htpasswd": htpasswd,
    "install": install,
    "kubectl": cluster.kubectl,
    "make": make,
    "pip": installing.pip,
    "pipx": installing.pipx,
    "python": ours.python,
    "python3": ours.python,
    "sglang": engine,
    "uv": installing.uv,
    "vllm": engine,
    "ws-guard": ours.ws_guard,
}


def main() -> NoReturn:
    """One program, as the shell starts it; 3 is no answer of any."""
    try:
        sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]))
    except Exception:  # noqa: BLE001 - the last resort: 1 would be an answer
        traceback.print_exc()
        sys.exit(3)


if __name__ == "__main__":
    main()
