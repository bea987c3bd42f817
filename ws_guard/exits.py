"""How a command ends: 0 yes, 1 no, 2 bad usage or input, 3 an internal error; one line each."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable

from .remarks import remark
from .settings import SettingError
from .sizing import InputError

YES, NO, BAD_INPUT, INTERNAL = 0, 1, 2, 3


def code_of(command: Callable[[], object]) -> int:
    """Run a command to its end; its exit code, what went wrong said on standard error."""
    try:
        code = command()
    except (InputError, SettingError) as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit:
        # The parser's own way out, taken only when standard output is a broken pipe: with 1.
        return 128 + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001 - the last resort: every way out has a code
        return _code_of_error(error)
    return code if isinstance(code, int) else YES


def _code_of_error(error: Exception) -> int:
    if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC):
        return _unwritten(error)
    # Usage errors of the parser know how to say themselves in a line.
    usage = getattr(error, "format_message", None)
    if usage is not None:
        where = getattr(getattr(error, "ctx", None), "command_path", "ws-guard")
        return refuse(f"{usage().rstrip('.?')}. See {where} --help.")
    remark("".join(traceback.format_exception(error)).rstrip())
    remark("ws-guard: internal error; please report the lines above")
    return INTERNAL


def flushed(code: int) -> int:
    """The code of a command once its answer is out; another where it cannot be written."""
    try:
        # None where the caller closed it.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return _unwritten(error)
    return code


def _unwritten(error: OSError) -> int:
    """The answer reached nobody: neither yes nor no, as when SIGPIPE ends a command."""
    # What is still buffered must not fail once more when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    return refuse(f"the answer cannot be written: {error.strerror}")


def refuse(message: str) -> int:
    """Say in one line what was bad, and what to do; the code for it."""
    remark(f"ws-guard: {' '.join(message.split())}")
    return BAD_INPUT
