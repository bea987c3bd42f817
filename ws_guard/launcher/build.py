"""Compiles the installed FlashInfer's launcher against our stub runner."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .toolchain import Compiler, CompilerMissing, find_compiler

if TYPE_CHECKING:
    from collections.abc import Iterator

STUB = Path(__file__).parent / "stub"
#: The name under which FlashInfer looks for the module, as directory and as file.
SPEC_NAME = "fmha_gen"
SOURCE = "trtllm_fmha_kernel_launcher.cu"
_TIMEOUT_S = 300
_LAST_LINES = 12


class BuildFailed(RuntimeError):  # noqa: N818 - public, and says it
    """The compiler refused; the text ends with its last lines."""


def build(
    flashinfer_root: Path, out_dir: Path | None = None, *, compiler: str | None = None
) -> Path:
    """Compile `<flashinfer_root>/data/csrc/trtllm_fmha_kernel_launcher.cu`; the library's path.

    `flashinfer_root` is the package directory. The result is kept under `out_dir` by a hash of all
    that goes in, so a second call costs milliseconds; many processes may call at once. `out_dir`
    defaults to `~/.cache/ws_guard/launcher`, or a private temporary directory where that cannot be
    written. `compiler` is the path of an nvcc or g++ to use instead of the one found.

    Raises `CompilerMissing` (no compiler or headers, with the remedy) or `BuildFailed`.
    """
    source = flashinfer_root / "data" / "csrc" / SOURCE
    if not source.is_file():
        raise CompilerMissing(f"{source} is not there: this FlashInfer ships no launcher source")
    tool = find_compiler(compiler, launches_kernels="<<<" in source.read_text())
    tvm_ffi = _package_directory("tvm_ffi")
    command = [
        *tool.command,
        *(f"-I{directory}" for directory in _include_directories(flashinfer_root, tvm_ffi, tool)),
        str(source),
        f"-L{tvm_ffi / 'lib'}",
        "-ltvm_ffi",
    ]
    # The directory has the shape of FlashInfer's own store of prebuilt modules: see `on_cpu`.
    home = _store(out_dir) / _key(flashinfer_root, tvm_ffi, tool) / SPEC_NAME
    library = home / f"{SPEC_NAME}.so"
    if not library.exists():
        home.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(home / "lock"):
            if not library.exists():
                _compile(command, library)
    return library


def installed_flashinfer_root() -> Path:
    """The directory of the installed FlashInfer, found without importing it."""
    return _package_directory("flashinfer")


def _package_directory(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise CompilerMissing(
            f"{name} is not installed; install flashinfer-python, which brings it"
        )
    return Path(found.submodule_search_locations[0])


def _include_directories(flashinfer_root: Path, tvm_ffi: Path, tool: Compiler) -> list[Path]:
    data = flashinfer_root / "data"
    # The stub comes first: it has to be found before the runner of the same name.
    return [STUB, data / "csrc", data / "include", tvm_ffi / "include", *tool.include_directories]


def _key(flashinfer_root: Path, tvm_ffi: Path, tool: Compiler) -> str:
    """A hash of all contents, and of FlashInfer's place: the launcher's error texts quote it."""
    data = flashinfer_root / "data"
    digest = hashlib.sha256(repr((tool, str(flashinfer_root))).encode())
    for root, patterns in (
        (STUB, ("**/*",)),
        (data / "csrc", (SOURCE, "tvm_ffi_utils.h")),
        (data / "include" / "flashinfer", ("*", "trtllm/**/*")),
        (tvm_ffi / "include", ("**/*",)),
    ):
        for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
            if path.is_file():
                digest.update(f"{path.relative_to(root)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(command: list[str], library: Path) -> None:
    """A name of its own and one rename: nobody ever loads half a library."""
    handle, temporary = tempfile.mkstemp(dir=library.parent, suffix=".so")
    os.close(handle)
    try:
        done = subprocess.run(  # noqa: S603 - a compiler that was asked for
            [*command, "-o", temporary],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            last = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
            raise BuildFailed(f"{command[0]} ended with {done.returncode}:\n{last}")
        os.replace(temporary, library)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{command[0]} did not end within {_TIMEOUT_S} s") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextlib.contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Let the other processes wait for the first one's result rather than compile it too."""
    with lock.open("w") as file:
        # Some network file systems know no locks: then all compile, and the last rename wins.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _store(out_dir: Path | None) -> Path:
    if out_dir is not None:
        return out_dir
    with contextlib.suppress(OSError, RuntimeError):
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        store = Path(cache) / "ws_guard" / "launcher"
        store.mkdir(parents=True, exist_ok=True)
        if os.access(store, os.W_OK):
            return store
    return _private_temporary_directory()


def _private_temporary_directory() -> Path:
    """Libraries are loaded from here: nobody else may be able to put one in."""
    store = Path(tempfile.gettempdir()) / f"ws_guard-launcher-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        store.mkdir(mode=0o700)
    found = store.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return store
    return Path(tempfile.mkdtemp(prefix="ws_guard-launcher-"))
