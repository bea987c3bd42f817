"""What the probe says in the worker's log."""

from __future__ import annotations

import contextlib
import os


def say(text: str) -> None:
    """Log a line. A handler of the engine's that raises must not harm the engine through us."""
    with contextlib.suppress(Exception):
        import logging  # slow to import, and seldom needed

        logging.getLogger("ws_guard").warning("ws_guard[%d]: %s", os.getpid(), text)
