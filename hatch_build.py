"""Builds the probe's hot path (`ws_guard/probe/_hot.c`) where there is a C compiler.

Without one, or without Python's headers, the package is pure Python: it does the same, at a higher
cost per native call. WS_GUARD_BUILD_EXTENSION=1 makes that an error, and 0 leaves the compiler
alone: a release has a wheel of each kind.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Unset: where it can be. 1: or fail. 0: never.
WANTED = "WS_GUARD_BUILD_EXTENSION"
SOURCE = "ws_guard/probe/_hot.c"
BUILT = "ws_guard/probe/_hot.abi3.so"
#: Python 3.10, the oldest that is supported: one build for it and every later version.
LIMITED_API = "0x030a0000"
FLAGS = (
    *("-O2", "-std=gnu11", "-Wall", "-Wextra", "-fPIC", "-shared"),
    f"-DPy_LIMITED_API={LIMITED_API}",
)


class ExtensionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles before a wheel or an editable install is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extension, or say why the package goes without."""
        wanted = os.environ.get(WANTED, "")
        if wanted not in ("", "0", "1"):
            raise SystemExit(f"{WANTED} is 0 or 1, got {wanted!r}")
        if self.target_name != "wheel" or wanted == "0":
            return
        problem = compile_extension(Path(self.root))
        if problem:
            self.app.display_warning(f"ws_guard: the hot path stays in Python: {problem}")
            if wanted == "1":
                raise SystemExit(f"{WANTED}=1, but {problem}")
            return
        if version != "editable":
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp310-abi3-{platform}"
            build_data["artifacts"].append(BUILT)


def compile_extension(root: Path) -> str:
    """Compile below `root`; the reason if that cannot be, else nothing."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        return f"there is no C compiler ({compiler[0]})"
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        return f"Python's headers are not installed ({headers})"
    command = [*compiler, *FLAGS, f"-I{headers}", SOURCE, "-o", BUILT]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return f"the compiler refused it: {done.stderr.strip()[-400:]}" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(compile_extension(Path(__file__).parent) or 0)
