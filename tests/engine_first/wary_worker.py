"""A worker that compares each native call with the same one without the probe.

`wary_worker.py BOARD [UID]` does what its input says, a line at a time, and answers each with one.
What it logs goes to its standard error.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from bare_op import REFUSAL, Decode, installed_over

import ws_guard

#: 12,288 rows of 64 heads with LSE do not fit.
REFUSED = 12_288


def native(*args: Any) -> object:
    if any(arg is REFUSED for arg in args):
        raise RuntimeError(REFUSAL)
    return args


class Worker:
    def __init__(self, board: str) -> None:
        self._probe = ws_guard.install(board=board)
        self._decode = Decode(self._probe._contract)
        self._op = installed_over(self._probe, native)
        self._met = 0

    def call(self, times: int) -> str:
        """So many calls of a shape, then one of a new shape, then one that is refused."""
        known, self._met = self._decode.arguments(16), self._met + 1
        right = sum(self._op(*known) == native(*known) for _ in range(times))
        new = self._decode.arguments(16 + self._met)
        right += self._op(*new) == native(*new)
        try:
            self._op(*self._decode.arguments(REFUSED, lse=True))
        except RuntimeError as error:
            right += str(error) == REFUSAL
        return f"{right} right"

    def describe(self, length: int) -> str:
        self._probe.describe(info={"text": "x" * length})
        return "described"


def main(board: str, uid: str = "") -> None:
    if uid:
        # Here and not before: another user may not reach the interpreter, nor load what comes then.
        Decode()
        import ctypes  # noqa: F401 - loaded
        import logging  # noqa: F401 - loaded

        import ws_guard.probe.installation
        import ws_guard.probe.recorder  # noqa: F401 - loaded

        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
    worker = Worker(board)
    print("attached", flush=True)
    for line in sys.stdin:
        word, number = line.split()
        print(getattr(worker, word)(int(number)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
