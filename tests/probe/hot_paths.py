"""The hot path in C and the one in Python: which of them a test takes."""

from __future__ import annotations

import pytest

from ws_guard.probe import hot

IN_C, IN_PYTHON = "in C", "in Python"
NOT_BUILT = "the extension was not built: `python hatch_build.py` says why"
#: Calls of a shape after which the hot path counts by itself.
FIRST = 6

in_c_alone = pytest.mark.skipif(not hot.is_built(), reason=NOT_BUILT)


def take(path: str, patch: pytest.MonkeyPatch) -> None:
    """Have what is instrumented from now on take that path; skip where it was not built."""
    if path == IN_PYTHON:
        patch.setattr(hot, "_hot", None)
        patch.setattr(hot, "Lane", hot.PlainLane)
    elif not hot.is_built():
        pytest.skip(NOT_BUILT)
