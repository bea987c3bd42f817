"""What the tests of this directory share: the soak's modules, which also run without pytest."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def _unavailable(reason: str) -> NoReturn:
    if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
        pytest.fail(f"WS_GUARD_REQUIRE_REAL=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def equipped() -> None:
    """Prometheus, and FlashInfer's launcher compiled for the CPU; or the end of the test."""
    pytest.importorskip("torch")
    from ws_guard import launcher

    if shutil.which("prometheus") is None:
        _unavailable("prometheus is not installed (Debian: prometheus)")
    try:
        launcher.build(launcher.installed_flashinfer_root())
    except launcher.CompilerMissing as error:
        _unavailable(str(error))
