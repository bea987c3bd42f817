"""Whether there is a card: for the tests, and for the programs that run by themselves."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def missing() -> str:
    """What stands between this Python and a card; "" where nothing does."""
    for package in ("torch", "flashinfer"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    return ""


def require() -> None:
    """End a program that needs a card in one line that says what is missing."""
    if reason := missing():
        name = Path(sys.argv[0]).name
        print(f"{name}: {reason}; run it by a Python with both for the card", file=sys.stderr)
        sys.exit(2)
