"""Imported by test files that need torch and FlashInfer: skips them where one is missing."""

from __future__ import annotations

import importlib.util

import pytest

for _package in ("torch", "flashinfer"):
    if importlib.util.find_spec(_package) is None:
        pytest.skip(f"{_package} is not installed", allow_module_level=True)
