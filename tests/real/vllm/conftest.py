"""The environment with real engines, and how their programs are run in it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
#: `make test-vllm` builds it; another one of the same make may stand elsewhere.
ENVIRONMENT = Path(os.environ.get("WS_GUARD_VLLM_ENV", str(ROOT / ".venv-vllm")))

_ENTRY_POINTS = """
[vllm.general_plugins]
ws_guard = ws_guard.engines.vllm_plugin:plugin

[sglang.srt.plugins]
ws_guard = ws_guard.engines.sglang_plugin:plugin
"""


class Ran(NamedTuple):
    """What a program printed: its last line as JSON, and its log."""

    told: dict[str, Any]
    log: str

    def said(self, *parts: str) -> list[str]:
        """Lines of the log that are ws_guard's and hold all of these parts."""
        lines = [line for line in self.log.splitlines() if "ws_guard[" in line]
        return [line for line in lines if all(part in line for part in parts)]


@pytest.fixture(scope="session")
def environment() -> Path:
    """The directory of the environment; without it the tests are skipped."""
    if not (ENVIRONMENT / ".installed").exists():
        reason = "there is no environment with vLLM: `make test-vllm` builds it, if the disk allows"
        if os.environ.get("WS_GUARD_REQUIRE_REAL_ENGINES") == "1":
            pytest.fail(f"WS_GUARD_REQUIRE_REAL_ENGINES=1, but {reason}", pytrace=False)
        pytest.skip(reason)
    return ENVIRONMENT


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that makes ws_guard an installed distribution with its entry points."""
    site = tmp_path_factory.mktemp("site")
    metadata = site / "ws_guard-0.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ws-guard\nVersion: 0.0.0\n")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
    return site


@pytest.fixture(scope="session")
def run(
    environment: Path, package: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Ran]:
    """`run(program, *arguments, **environ)` in the environment, with a board of its own.

    Importing an engine takes long: tests that ask for the same get the same answer.
    """

    @functools.cache
    def run_program(program: str, *arguments: str, **environ: str) -> Ran:
        paths = (str(package), str(ROOT), str(HERE))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("WS_GUARD", "VLLM"))}
        done = subprocess.run(
            [str(environment / "bin" / "python"), str(HERE / program), *arguments],
            env={
                **inherited,
                "PYTHONPATH": os.pathsep.join(paths),
                "WS_GUARD_BOARD": str(tmp_path_factory.mktemp("run") / "board"),
                "HF_HUB_OFFLINE": "1",
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return Ran(json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr)

    return run_program
