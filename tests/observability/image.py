"""The image, built by buildah without a daemon on a base made here, and run with a read-only root.

The base is Debian's own Python, since no registry of images need be in reach; what pip installs is
fetched before, so that the build itself needs no network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A release of Debian and the Python in it.
_RELEASE, _PYTHON = "bookworm", "3.11"
_BASE = "localhost/python-base"
#: The same with a compiler and Python's headers.
_BUILD_BASE = "localhost/python-build-base"
_PIP = "[global]\nno-index = true\nfind-links = /wheels\n"


class Image:
    """An image in a storage of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._containers: dict[str, str] = {}

    def buildah(self, *arguments: str | Path) -> str:
        """The output of buildah; the test fails with what it says."""
        storage = ("--root", self._folder / "storage", "--runroot", self._folder / "run")
        return _done("buildah", *storage, "--storage-driver", "vfs", *arguments)

    def make_base(self, name: str = _BASE, *more: str) -> None:
        """Debian with Python and pip, as an image."""
        tar = self._folder / "base.tar"
        packages = ",".join(("python3", "python3-pip", "python3-venv", *more))
        options = ["--variant=minbase", f"--include={packages}"]
        options += [f"--dpkgopt=path-exclude=/usr/share/{what}/*" for what in ("doc", "locale")]
        _done("mmdebstrap", *options, _RELEASE, tar)
        made = self.buildah("from", "scratch").strip()
        self.buildah("add", made, tar, "/")
        self.buildah("commit", "--format", "docker", made, name)
        tar.unlink()

    def build(self) -> None:
        """Our Dockerfile on that base, the probe's hot path compiled beside it."""
        self.make_base()
        self.make_base(_BUILD_BASE, "gcc", "libc6-dev", "python3-dev")
        fetch_wheels(self._folder / "wheels")
        (self._folder / "pip.conf").write_text(_PIP)
        self.buildah(
            *("build", "--format", "docker", "--pull-never", "--isolation", "chroot"),
            *("--build-arg", f"PYTHON_IMAGE={_BASE}", "--build-arg", f"BUILD_IMAGE={_BUILD_BASE}"),
            *("--build-arg", "REVISION=abc123"),
            *("--volume", f"{self._folder / 'wheels'}:/wheels:ro"),
            *("--volume", f"{self._folder / 'pip.conf'}:/etc/pip.conf:ro"),
            *("--tag", "ws-guard", ROOT),
        )

    def config(self) -> dict[str, Any]:
        """What the image says of itself."""
        told = json.loads(self.buildah("inspect", "--type", "image", "ws-guard"))
        found: dict[str, Any] = told["Docker"]["config"]
        return found

    def container(self, image: str = "ws-guard") -> str:
        """A container of the image, not running: always the same."""
        if image not in self._containers:
            self._containers[image] = self.buildah("from", "--pull-never", image).strip()
        return self._containers[image]

    def files(self, container: str) -> Path:
        """Where a container's files lie."""
        return Path(self.buildah("mount", container).strip())

    def size(self, image: str) -> int:
        """Bytes of an image's files."""
        told = _done("du", "--summarize", "--block-size=1", self.files(self.container(image)))
        return int(told.split()[0])

    @contextmanager
    def running(
        self, board: Path, user: str = "", command: list[str] | None = None, **environ: str
    ) -> Iterator[subprocess.Popen[str]]:
        """A command on a read-only root, the board at /mnt: the image's own, as its own user."""
        root, config = self.files(self.container()), self.config()
        settings = [*config["Env"], *(f"{name}={value}" for name, value in environ.items())]
        mounted = (
            'mount --bind "$1" "$1" && mount --bind "$2" "$1/mnt" && '
            'mount -o remount,ro,bind "$1" && cd "$1" && shift 2 && exec "$@"'
        )
        inside = ["chroot", f"--userspec={user or config['User']}", "--groups=", str(root)]
        what = ["env", "-i", *settings, *(command or config["Entrypoint"] + config["Cmd"])]
        process = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "sh",
                "-c",
                mounted,
                "sh",
                str(root),
                str(board),
                *inside,
                *what,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=30)


def fetch_wheels(folder: Path, *options: str) -> None:
    """All that the image's pip will ask for, as wheels."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["optional-dependencies"]["exporter"]
    fetch = ["pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    fetch += ["--python-version", _PYTHON, "--dest", str(folder), *options]
    _done(sys.executable, "-m", *fetch, *wanted, *project["build-system"]["requires"])


def _done(*command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "BUILDAH_HISTORY": "false"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
