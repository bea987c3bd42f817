"""A worker that makes very many native calls: `endurance.py BOARD CALLS THREADS [python]`.

With `python` the hot path in C is left out. Prints what it made and how its memory grew, then waits
for the end of its input.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import threading
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bare_op import Decode

from ws_guard.board import Board
from ws_guard.board.format import EXACT_ROWS
from ws_guard.probe import hot
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import OPS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A step calls each shape once for each layer.
LAYERS = 61
#: Shapes that come again and again: with rows of their own, and folded ones.
OWN, FOLDED = 300, 20
#: Shapes met before memory is measured: more than the table of rows and than a ledger remembers.
MET = 26_000
#: Which of them is among the first that share a row, for certain.
FIRST_FOLDED = 20_000
#: Steps after which a shape comes that was never seen.
NEW_EVERY = 500
MOST_BATCH = 60_000


def memory() -> int:
    """Bytes of this process's own memory, without files."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


class Engine:
    """Makes calls, and keeps an account of its own: by batch, one step at a time."""

    def __init__(self, board: str) -> None:
        decode = Decode()
        layout = decode.contract.layout
        assert layout is not None
        told = {"engine": "0", "rank": "0", "layout": layout.name, "contract": "verified"}
        self.recorder = Recorder(Board(board), layout, list(OPS.values()), told)
        #: Calls by batch. Of a size of its own: memory must be flat.
        self.made = array("Q", bytes(8 * (MOST_BATCH + 1)))
        self._decode = decode
        self._op = decode.over(lambda *_args: None, self.recorder)
        self._never_seen = map(self._shape, itertools.count())
        self._lock = threading.Lock()
        self.steady = [next(self._never_seen) for _ in range(OWN)]
        self._step(self.steady, LAYERS)
        for number in range(MET):
            shape = next(self._never_seen)
            self._step([shape], 1)
            if FIRST_FOLDED <= number < FIRST_FOLDED + FOLDED:
                self.steady.append(shape)

    def _shape(self, number: int) -> tuple[Any, ...]:
        return self._decode.arguments(1 + 7 * number % MOST_BATCH, heads=1 + number % 127)

    def _step(self, shapes: list[tuple[Any, ...]], layers: int) -> None:
        op = self._op
        for arguments in shapes:
            for _ in range(layers):
                op(*arguments)
        with self._lock:
            for arguments in shapes:
                self.made[self._decode.batch_of(arguments)] += layers

    def _steps(self) -> Iterator[list[tuple[Any, ...]]]:
        for number, shape in enumerate(itertools.cycle(self.steady)):
            if number % NEW_EVERY == 0:
                yield [next(self._never_seen)]
            yield [shape]

    def run(self, calls: int) -> None:
        """Make so many calls, and the rest of a step."""
        steps = self._steps()
        for _ in range(calls // LAYERS + 1):
            self._step(next(steps), LAYERS)


def main(board: str, calls: str, threads: str, path: str = "") -> None:
    if path == "python":
        hot._hot, hot.Lane, hot.Account = None, hot.PlainLane, hot.PlainAccount
    engine = Engine(board)
    engine.run(50 * LAYERS)
    before, started = memory(), sum(engine.made)
    if int(threads) == 1:
        engine.run(int(calls))
    else:
        sys.setswitchinterval(1e-5)
        share = int(calls) // int(threads)
        running = [threading.Thread(target=engine.run, args=(share,)) for _ in range(int(threads))]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    told = {
        "calls": sum(engine.made) - started,
        "grown": memory() - before,
        "made": {batch: calls for batch, calls in enumerate(engine.made) if calls},
        "memory": before,
        "slot": os.path.getsize(str(engine.recorder.slot.path)),
        "in_c": hot.is_built(),
        "rows": engine.recorder.slot.words[8] == EXACT_ROWS,
    }
    print(json.dumps(told), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
