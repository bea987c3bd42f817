"""Tests of `install()` and its undoing: none finds a setting that it has not made itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ws_guard import Probe, install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LAUNCHER = Path("data/csrc/trtllm_fmha_kernel_launcher.cu")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WS_GUARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


@pytest.fixture
def installed(board: str) -> Iterator[Callable[..., Probe]]:
    """`install()` on the board of the test, undone afterwards."""
    probes: list[Probe] = []

    def make(**arguments: Any) -> Probe:
        probes.append(install(**{"board": board, **arguments}))
        return probes[-1]

    yield make
    for probe in probes:
        probe.uninstall()


@pytest.fixture
def package(tmp_path: Path, flashinfer: Path) -> Path:
    """A copy of the installed FlashInfer's launcher source, in a package that is nothing else."""
    copy = tmp_path / "packages" / "flashinfer"
    (copy / LAUNCHER).parent.mkdir(parents=True)
    shutil.copy(flashinfer / LAUNCHER, copy / LAUNCHER)
    (copy / "jit").mkdir()
    for module in ("__init__.py", "jit/__init__.py"):
        (copy / module).touch()
    (copy / "jit" / "core.py").write_text(
        "class JitSpec:\n    name = 'fmha_gen'\n    def build_and_load(self):\n        return 1\n"
    )
    information = copy.parent / "flashinfer_python-0.6.14.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: flashinfer-python\nVersion: 0.6.14\n")
    return copy
