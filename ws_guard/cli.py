"""The way in. Exit codes: 0 yes, 1 no, 2 bad usage or input, 3 an internal error.

Next to nothing is imported here: Ctrl-C must find its handler before what takes time.
"""

from __future__ import annotations

import os
import sys

try:
    import signal
except KeyboardInterrupt:
    os._exit(130)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit with its code; bad input is one line on stderr."""
    _leave_on_ctrl_c()
    code = run(sys.argv[1:])
    _leave_on_ctrl_c()
    from .exits import flushed
    from .remarks import settle

    code = flushed(code)
    settle()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command, return its exit code."""
    from .exits import code_of

    return code_of(lambda: _run(arguments))


def _run(arguments: list[str]) -> object:
    from . import commands

    if signal.getsignal(signal.SIGINT) is _leave:
        # A command may have something to put in order.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return commands.run_typed(arguments)


def _leave_on_ctrl_c() -> None:
    """While no command is at work Ctrl-C ends us at once: an exception has nobody to catch it."""
    # Whoever started us may have it ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def _leave(*_: object) -> NoReturn:
    os._exit(128 + signal.SIGINT)
