"""Tests of the hot path: each that asks for `watched` runs in C and in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hot_paths import IN_C, IN_PYTHON, take

if TYPE_CHECKING:
    from native_calls import Watched

    from ws_guard.probe.recorder import Recorder


@pytest.fixture(params=[IN_C, IN_PYTHON])
def built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the hot path is the one in C."""
    take(request.param, monkeypatch)
    return request.param == IN_C


@pytest.fixture
def watched(built: bool, recorder: Recorder) -> Watched:  # noqa: ARG001 - chooses what is watched
    """A decode under a probe that observes."""
    from native_calls import watch  # brings torch

    return watch(recorder)
