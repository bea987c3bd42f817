"""Where things are, and what to say where they are not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).parents[2]
#: `make test-observability` builds it.
ENVIRONMENT = ROOT / ".venv-observability"
#: Pictures, for people; the latest run's.
ARTEFACTS = ENVIRONMENT / "artefacts"
#: FlashInfer of layout C, whose need beside its plan is a round number.
NEWEST_PYTHON = ROOT / ".venv-flashinfer-0.7.4" / "bin" / "python"

RULES = ROOT / "dashboards" / "prometheus" / "ws-guard.rules.yml"
DASHBOARDS = {
    name: ROOT / "dashboards" / "grafana" / f"{name}.json" for name in ("fleet", "engine")
}


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; fail where the real thing has to be there."""
    if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
        pytest.fail(f"WS_GUARD_REQUIRE_REAL=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def needed(path: Path) -> Path:
    """A path that make builds, or the end of the test."""
    if not path.exists():
        unavailable(f"there is no {path.relative_to(ROOT)}: make test-observability builds it")
    return path


def dashboard(name: str) -> dict[str, Any]:
    """One of Grafana's dashboards."""
    found: dict[str, Any] = json.loads(DASHBOARDS[name].read_text())
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Its panels."""
    found: list[dict[str, Any]] = dashboard(name)["panels"]
    return found
