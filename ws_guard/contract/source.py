"""Finds the launcher source: every FlashInfer wheel ships it, to compile it just in time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

CSRC = Path("data/csrc")
LAUNCHER = CSRC / "trtllm_fmha_kernel_launcher.cu"
_DISTRIBUTION = "flashinfer-python"


class LauncherSource(NamedTuple):
    """An installed launcher: FlashInfer's release, where its source stands, the source."""

    release: str
    path: Path
    text: str


class NotInstalledError(LookupError):
    """There is no FlashInfer, or it ships no launcher source; the text says which."""


def package_root() -> Path:
    """The installed FlashInfer package's directory, found without importing it."""
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalledError("flashinfer is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def installed_release() -> str:
    """The installed FlashInfer's version, from its module if that is loaded, else its metadata."""
    loaded = getattr(sys.modules.get("flashinfer"), "__version__", None)
    if isinstance(loaded, str):
        return loaded
    import importlib.metadata  # slow to import, and not needed where the module is loaded

    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise NotInstalledError(f"{_DISTRIBUTION} is not installed") from None


def installed_source() -> LauncherSource:
    """The launcher source of the installed FlashInfer, or `NotInstalledError`."""
    path, release = package_root() / LAUNCHER, installed_release()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotInstalledError(f"flashinfer {release} ships no {LAUNCHER.name}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise NotInstalledError(
            f"flashinfer {release} ships no readable {LAUNCHER.name} ({error})"
        ) from None
    return LauncherSource(release, path, text)
