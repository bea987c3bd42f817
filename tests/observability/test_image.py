"""The image: linted, built, and run as it would be in a pod."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from image import Image, fetch_wheels
from places import ENVIRONMENT, ROOT, needed, unavailable
from pods import DOCKERFILE, container, image_uid
from servers import fetch, free_port, wait_for

from ws_guard.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.observability, pytest.mark.timeout(600)]

_GROUP = 10_001
_SETTINGS = {"WS_GUARD_BOARD": "/mnt", "WS_GUARD_BOARD_GROUP": str(_GROUP)}
_ATTACH = (
    "import sys, ws_guard\nws_guard.install(engine='0', rank={rank})\n"
    "print(flush=True)\nsys.stdin.read()"
)


@pytest.fixture(scope="session")
def image(
    program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Image]:
    """The image, built once."""
    if os.geteuid() != 0:
        unavailable("an image can be built and mounted by root only")
    for name in ("buildah", "mmdebstrap", "unshare"):
        program(name)
    folder = tmp_path_factory.mktemp("image")
    made = Image(folder)
    made.build()
    yield made
    shutil.rmtree(folder)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A directory as the kubelet makes it for an fsGroup."""
    made = tmp_path / "board"
    made.mkdir()
    os.chown(made, 0, _GROUP)
    made.chmod(0o2777)
    return made


def test_hadolint(judge: Callable[..., str]) -> None:
    assert judge("hadolint", ROOT / "Dockerfile") == ""


def test_one_file_for_every_architecture(tmp_path: Path) -> None:
    """Nothing in it names one, and all that pip installs is there for both as wheels."""
    instructions = "".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#"))
    assert not any(word in instructions for word in ("amd64", "x86", "arm64", "TARGETARCH"))
    for machine in ("aarch64", "x86_64"):
        fetch_wheels(tmp_path / machine, "--platform", f"manylinux2014_{machine}")


def test_what_it_says_of_itself(image: Image) -> None:
    config = image.config()
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] + config["Cmd"] == ["ws-guard", "serve"]
    assert list(config["ExposedPorts"]) == ["19456/tcp"]
    assert config["Healthcheck"]["Test"][:3] == ["CMD", "python", "-c"]
    assert "/livez" in config["Healthcheck"]["Test"][3]
    label = "org.opencontainers.image."
    labels = {k.removeprefix(label): v for k, v in config["Labels"].items() if k.startswith(label)}
    assert labels["version"] == __version__
    assert labels["revision"] == "abc123"
    assert {"title", "description", "licenses"} <= set(labels)


def test_size(image: Image) -> None:
    assert image.size("ws-guard") - image.size("localhost/python-base") < 200 * 10**6


def test_the_user_is_nobody_else(image: Image) -> None:
    run = ("run", "--isolation", "chroot", image.container(), "--")
    assert image.buildah(*run, "id", "-u") == f"{image_uid()}\n"
    told = image.buildah(*run, "ws-guard", "--version")
    assert told == f"ws-guard {__version__}\n"


def test_the_probe_that_pods_copy_has_its_part_in_c(image: Image) -> None:
    script = (
        "import importlib.metadata as m, shutil, ws_guard.probe._hot\n"
        "print([str(file) for file in m.distribution('ws-guard').files if '_hot' in str(file)])\n"
        "print(shutil.which('cc'))\n"
    )
    run = ("run", "--isolation", "chroot", image.container(), "--")
    told = image.buildah(*run, "python", "-c", script).splitlines()
    assert told == ["['ws_guard/probe/_hot.abi3.so', 'ws_guard/probe/_hot.c']", "None"]


def test_it_serves_by_buildah_run(image: Image) -> None:
    port = str(free_port())
    script = (
        "import subprocess, sys, time, urllib.request as u\n"
        "served = subprocess.Popen(['ws-guard', 'serve'])\n"
        "for _ in range(200):\n"
        "    time.sleep(0.1)\n"
        "    try:\n"
        f"        print(u.urlopen('http://127.0.0.1:{port}/livez').read().decode())\n"
        "        break\n"
        "    except OSError:\n"
        "        pass\n"
        "served.terminate()\n"
        "sys.exit(served.wait())\n"
    )
    environ = ("--env", f"WS_GUARD_LISTEN=*:{port}")
    run = ("run", "--isolation", "chroot", *environ, image.container())
    assert image.buildah(*run, "--", "python", "-c", script).strip() == "ok"


def test_a_sidecar_with_a_read_only_root(image: Image, board: Path) -> None:
    """The exporter as uid 10001 reads what a worker of uid 0 writes to the group's board."""
    port = str(free_port())
    listen = {"WS_GUARD_LISTEN": f"*:{port}"}
    healthcheck = image.config()["Healthcheck"]["Test"][1:]
    with image.running(board, **_SETTINGS, **listen) as process, root_worker(board):
        url = f"http://127.0.0.1:{port}"
        wait_for("/livez of the image", lambda: fetch(f"{url}/livez") == (200, "ok\n"))
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert [
            line for line in status.splitlines() if line.startswith(("Uid", "Gid", "Groups"))
        ] == [
            "Uid:\t10001\t10001\t10001\t10001",
            "Gid:\t10001\t10001\t10001\t10001",
            "Groups:\t ",
        ]
        assert wait_for("the worker", lambda: workers(url)) == {"0": True}
        with pytest.raises(OSError, match="Read-only file system"):
            Path(f"/proc/{process.pid}/root/opt/ws-guard/file").touch()
        assert in_container(process.pid, healthcheck, listen) == 0
        assert in_container(process.pid, healthcheck, {"WS_GUARD_LISTEN": "*:9"}) != 0
    assert process.returncode == 0


def test_an_engine_that_is_not_root_is_read_where_its_uid_is_trusted(
    image: Image, board: Path
) -> None:
    """The pods of dashboards/kubernetes: the engine as uid 2000, the exporter as uid 10001."""
    attach = ["python", "-c", _ATTACH.format(rank=1)]
    port, trusting = str(free_port()), str(free_port())
    with (
        image.running(board, **_SETTINGS, WS_GUARD_LISTEN=f"*:{port}"),
        image.running(
            board, **_SETTINGS, WS_GUARD_LISTEN=f"*:{trusting}", WS_GUARD_TRUSTED_UIDS="2000"
        ),
        image.running(board, f"2000:{_GROUP}", attach, **_SETTINGS) as engine,
        root_worker(board),
    ):
        assert engine.stdout is not None
        assert engine.stdout.readline() == "\n"
        both = {"0": True, "1": True}
        wait_for("both workers", lambda: workers(f"http://127.0.0.1:{trusting}") == both)
        wait_for("root's worker", lambda: workers(f"http://127.0.0.1:{port}") == {"0": True})


def test_the_probe_that_the_init_container_lays_out_is_installed(
    image: Image, board: Path, judge: Callable[..., str]
) -> None:
    """What the engine's Python then sees on its PYTHONPATH: the package and its plugins."""
    manifest = (ROOT / "dashboards" / "kubernetes" / "deployment.yaml").read_text()
    pod = yaml.safe_load(manifest)["spec"]["template"]["spec"]
    lay_out = container(pod, "probe")
    (program,) = lay_out["args"]
    command = [*lay_out["command"], program.replace("/ws-guard", "/mnt")]
    with image.running(board, f"2000:{_GROUP}", command) as process:
        assert process.wait(60) == 0
    look = (
        "from importlib.metadata import entry_points\nimport ws_guard\nprint(ws_guard.__file__)\n"
        "print(*(p.name for g in ('vllm.general_plugins', 'sglang.srt.plugins')"
        " for p in entry_points(group=g)))"
    )
    python = needed(ENVIRONMENT / "bin" / "python")
    told = judge(str(python), "-c", look, env={"PYTHONPATH": str(board)}, cwd=str(board.parent))
    assert told.splitlines() == [str(board / "ws_guard" / "__init__.py"), "ws_guard ws_guard"]


def workers(url: str) -> dict[str, bool]:
    """Whether each worker lives, by rank."""
    status, body = fetch(f"{url}/api/v1/workers")
    return {one["rank"]: one["alive"] for one in json.loads(body)["workers"]} if status else {}


def in_container(pid: int, command: list[str], environ: dict[str, str]) -> int:
    """The exit code of a command beside a running one, as a container's health check is run."""
    settings = ["PATH=/opt/ws-guard/bin:/usr/bin", *(f"{k}={v}" for k, v in environ.items())]
    enter = ["nsenter", f"--target={pid}", "--mount", "--root", "--wd"]
    done = subprocess.run(
        [*enter, "env", "-i", *settings, *command], capture_output=True, check=False
    )
    return done.returncode


@contextmanager
def root_worker(board: Path) -> Iterator[None]:
    """A real worker of uid 0 on a shared board, until the block ends."""
    shared = {"WS_GUARD_BOARD": str(board), "WS_GUARD_BOARD_GROUP": str(_GROUP)}
    process = subprocess.Popen(
        [sys.executable, "-c", _ATTACH.format(rank=0)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **shared},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    yield
    process.communicate()
