"""Lines on standard error beside an answer: whoever does not read them loses nothing but them."""

from __future__ import annotations

import contextlib
import os
import sys


def remark(text: str) -> None:
    """Say a line, if standard error is open and takes it."""
    # Where it was closed there is none, and `print` would take standard output instead.
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def settle() -> None:
    """What nobody took must not turn our exit code into 120 at the interpreter's end."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
