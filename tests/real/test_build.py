"""Building the launcher: what it keeps, whom it trusts, and what it says when it cannot."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ws_guard import launcher
from ws_guard.launcher import BuildFailed, CompilerMissing

pytest.importorskip("tvm_ffi")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A FlashInfer that ships a launcher of one line."""
    csrc = tmp_path / "flashinfer" / "data" / "csrc"
    csrc.mkdir(parents=True)
    write_launcher(csrc.parents[1], 'extern "C" int answer() { return 42; }')
    return csrc.parents[1]


def write_launcher(package: Path, text: str) -> None:
    (package / "data" / "csrc" / "trtllm_fmha_kernel_launcher.cu").write_text(text)


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """A g++ that counts its compilations, one line each in `compiled` beside it."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    path = tmp_path / "g++"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || echo >> {tmp_path}/compiled\nexec g++ "$@"'
    )
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def cuda_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher of one line includes nothing: an empty header is enough to be found."""
    home = tmp_path / "cuda"
    (home / "include").mkdir(parents=True)
    (home / "include" / "cuda_runtime.h").touch()
    monkeypatch.setenv("CUDA_HOME", str(home))


def compilations(compiler: Path) -> int:
    return len((compiler.parent / "compiled").read_text().splitlines())


def test_keeps_what_it_built(package: Path, compiler: Path, tmp_path: Path) -> None:
    first = launcher.build(package, tmp_path / "out", compiler=str(compiler))
    assert launcher.build(package, tmp_path / "out", compiler=str(compiler)) == first
    assert compilations(compiler) == 1
    assert ctypes.CDLL(str(first)).answer() == 42
    # FlashInfer looks for prebuilt modules at <store>/fmha_gen/fmha_gen.so.
    assert first.parts[-2:] == ("fmha_gen", "fmha_gen.so")
    assert not list(first.parent.glob("tmp*"))


def test_another_source_is_another_library(package: Path, compiler: Path, tmp_path: Path) -> None:
    first = launcher.build(package, tmp_path / "out", compiler=str(compiler))
    write_launcher(package, 'extern "C" int answer() { return 43; }')
    second = launcher.build(package, tmp_path / "out", compiler=str(compiler))
    assert second != first
    assert ctypes.CDLL(str(second)).answer() == 43


def test_eight_processes_compile_once(package: Path, compiler: Path, tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from ws_guard.launcher import build;"
        "print(build(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), compiler=sys.argv[3]))"
    )
    arguments = [str(package), str(tmp_path / "out"), str(compiler)]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    answers = {racer.communicate(timeout=120)[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 8
    assert len(answers) == 1
    assert ctypes.CDLL(answers.pop()).answer() == 42
    assert compilations(compiler) == 1


def test_home_that_cannot_be_written(
    package: Path, compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/no-home")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = launcher.build(package, compiler=str(compiler)).parents[2]
    assert store.parent == tmp_path
    assert store.stat().st_mode & 0o077 == 0
    # Where others may write, they may leave a library to be loaded: not used.
    store.chmod(0o777)
    assert launcher.build(package, compiler=str(compiler)).parents[2] != store


def test_compiler_output_is_told(package: Path, compiler: Path, tmp_path: Path) -> None:
    write_launcher(package, "#error no such thing")
    with pytest.raises(BuildFailed, match="no such thing"):
        launcher.build(package, tmp_path / "out", compiler=str(compiler))
    assert not list((tmp_path / "out").rglob("*.so"))


def test_compiler_that_is_not_there(package: Path, tmp_path: Path) -> None:
    with pytest.raises(CompilerMissing, match="/nowhere/g\\+\\+ does not run"):
        launcher.build(package, tmp_path, compiler="/nowhere/g++")


def test_kernel_launches_need_nvcc(package: Path, compiler: Path, tmp_path: Path) -> None:
    write_launcher(package, "void f() { kernel<<<1, 1>>>(); }")
    with pytest.raises(CompilerMissing, match="install the CUDA toolkit or set CUDA_HOME"):
        launcher.build(package, tmp_path, compiler=str(compiler))


def test_package_without_source(tmp_path: Path) -> None:
    with pytest.raises(CompilerMissing, match="ships no launcher source"):
        launcher.build(tmp_path, tmp_path)


def test_import_needs_the_standard_library_alone() -> None:
    program = (
        "import sys, ws_guard.launcher;"
        "print({'torch', 'tvm_ffi', 'flashinfer', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
