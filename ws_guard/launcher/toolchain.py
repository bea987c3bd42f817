"""Which compiler there is, and where the CUDA headers are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class CompilerMissing(RuntimeError):  # noqa: N818 - public, and says it
    """No compiler or headers that could build the launcher; the text says what to install."""


class Compiler(NamedTuple):
    """A compiler with the options that make a shared library of the launcher."""

    command: list[str]
    include_directories: list[Path]
    version: str


def find_compiler(wanted: str | None, *, launches_kernels: bool) -> Compiler:
    """nvcc, else g++ where that suffices: a source that launches a kernel itself needs nvcc.

    Raises `CompilerMissing` with the remedy in one line.
    """
    nvcc, gxx = (wanted, None) if wanted is None or "nvcc" in Path(wanted).name else (None, wanted)
    if wanted is None:
        nvcc, gxx = _nvcc(), shutil.which("g++")
    if nvcc is not None:
        options = ["-std=c++17", "-O0", "-w", "-shared", "-Xcompiler", "-fPIC"]
        return Compiler([nvcc, *options], [], _version(nvcc))
    if launches_kernels:
        raise CompilerMissing(
            "this FlashInfer's launcher compiles with nvcc alone; install the CUDA toolkit or set "
            "CUDA_HOME to it"
        )
    if gxx is None:
        raise CompilerMissing("neither nvcc nor g++ found; install g++ or the CUDA toolkit")
    headers = _cuda_headers()
    if headers is None:
        raise CompilerMissing(
            "cuda_runtime.h not found; set CUDA_HOME, install the CUDA toolkit, or pip install "
            "nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"
        )
    # The launcher takes M_LOG2E from a header that nvcc includes by itself.
    options = ["-std=gnu++17", "-O0", "-w", "-include", "cmath", "-x", "c++", "-shared", "-fPIC"]
    return Compiler([gxx, *options], [headers], _version(gxx))


def _version(compiler: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - a compiler that was asked for
            [compiler, "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissing(f"{compiler} does not run: {error}") from None
    return done.stdout


def _cuda_homes() -> list[Path]:
    named = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    return [*(Path(home) for home in named if home), Path("/usr/local/cuda")]


def _nvcc() -> str | None:
    """That of a home that was named, else on the path, else of the usual home."""
    *named, usual = (home / "bin" / "nvcc" for home in _cuda_homes())
    found = next((str(path) for path in named if path.is_file()), None) or shutil.which("nvcc")
    return found or (str(usual) if usual.is_file() else None)


def _cuda_headers() -> Path | None:
    candidates = [home / "include" for home in _cuda_homes()]
    # NVIDIA's wheels: nvidia/cuda_runtime/include, nvidia/cu13/include.
    candidates += [
        path for entry in sys.path if entry for path in Path(entry).glob("nvidia/cu*/include")
    ]
    return next((path for path in candidates if (path / "cuda_runtime.h").is_file()), None)
