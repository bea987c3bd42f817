"""The cost of the hot path, counted in instructions: no clock, and no other process, has a say."""

from __future__ import annotations

import os

import pytest

from benchmarks import instructions
from ws_guard.probe import hot


def lacking(reason: str) -> None:
    """Skip, or fail where everything real is asked for."""
    if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
        pytest.fail(f"WS_GUARD_REQUIRE_REAL=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def test_a_native_call_takes_no_more_instructions_than_recorded() -> None:
    if not instructions.is_possible():
        lacking("valgrind is not installed (Debian: valgrind)")
    if not hot.is_built():
        lacking("the extension is not built: python hatch_build.py")
    recorded = instructions.recorded()
    if recorded is None:
        version = instructions.python_version()
        lacking(f"Python {version} is not in {instructions.RECORD.name}: run it with --record")
    assert recorded is not None
    measured = instructions.run()
    for name in instructions.RATIOS:
        assert measured[name] <= recorded[name] * (1 + instructions.TOLERANCE), name
