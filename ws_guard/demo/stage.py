"""What the demonstration runs on: an interpreter with FlashInfer, and a native module."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ws_guard.settings import DECLARED
from ws_guard.sizing import InputError

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]

Say = Callable[[str], None]


class Stage(NamedTuple):
    """What the demonstration runs on: the interpreter with FlashInfer, and what that carves by."""

    python: str
    release: str
    layout: str
    #: The compiled launcher; None where the stand-in serves.
    library: str | None
    environment: dict[str, str]


_DESCRIBE = """
import json
from ws_guard import contract, launcher
try:
    found = contract.installed_contract()
    import torch
except (LookupError, ImportError) as error:
    raise SystemExit(f"{error}")
if found.layout is None:
    raise SystemExit(f"FlashInfer {found.release} carves in no known way: {found.reason}")
library, why = None, ""
try:
    library = str(launcher.build(launcher.installed_flashinfer_root()))
except (launcher.CompilerMissing, launcher.BuildFailed) as error:
    why = str(error).splitlines()[0]
print(json.dumps([found.release, found.layout.name, library, why]))
"""


def prepare_stage(python: str, layout: str | None, folder: str, say: Say) -> Stage:
    """Find FlashInfer and compile its launcher. `InputError` where there is none of that layout."""
    if unused := [name for name in os.environ if name in DECLARED and name != "WS_GUARD_LISTEN"]:
        say(f"not used by the demonstration, which observes: {', '.join(sorted(unused))}")
    say("looking at FlashInfer, compiling its launcher for the CPU (some seconds, once) ...")
    environment = _environment(folder)
    command = [python, "-c", _DESCRIBE]
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the user named
            command, capture_output=True, text=True, env=environment, check=False
        )
    except OSError as error:
        raise InputError(f"--python {python}: {error.strerror}; name an interpreter") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it ended"
        raise InputError(
            f"the demo needs torch and FlashInfer ({reason}): run make demo, "
            "or pip install 'ws-guard[flashinfer]'"
        )
    release, found, library, why = json.loads(done.stdout.splitlines()[-1])
    if layout is not None and layout != found:
        raise InputError(
            f"FlashInfer {release} carves by layout {found}, not {layout}: "
            "pass --python of an environment with another release, or make demo LAYOUT=C"
        )
    native = "its real launcher" if library else f"a stand-in for its launcher ({why})"
    say(f"FlashInfer {release}, layout {found}: its real Python on {native}")
    return Stage(python, release, found, library, environment)


def _environment(folder: str) -> dict[str, str]:
    """The environment of the children: this ws_guard first, and none of its settings inherited.

    FlashInfer makes its cache directory when it is imported: here, where HOME may be read-only.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("WS_GUARD_")}
    own = {"PYTHONPATH": str(_PACKAGE_ROOT), "FLASHINFER_WORKSPACE_BASE": folder}
    return {**inherited, **own}
