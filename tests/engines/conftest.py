"""A hub cache of the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from .models import write_hub


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hub cache, made once."""
    return write_hub(tmp_path_factory.mktemp("hub"))
