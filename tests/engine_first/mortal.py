"""Workers that record without a pause until they are killed: `mortal.py BOARD` forks them.

A line `KIND RANK ACCOUNT` on its input begins a life whose pid it prints; a line `PID` prints how
that one ended. An account is a file that a life keeps of itself, in words that no kill can tear.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from bare_op import REFUSAL, Decode

import ws_guard.board
from ws_guard.board import Board, Slot
from ws_guard.board.format import EXACT_ROWS
from ws_guard.board.tidy import remove_dead
from ws_guard.contract import Contract, installed_contract
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import OPS

if TYPE_CHECKING:
    from collections.abc import Callable

#: What a life may be in the middle of.
PHASES = (
    "starting",
    "between calls",
    "in a native call or its count",
    "a run begins",
    "a new row",
    "folding",
    "a document",
    "making a slot",
    "tidying",
    "closing",
)
STARTING, BETWEEN, CALL, RUN, ROW, FOLD, DOCUMENT, MAKING, TIDYING, CLOSING = range(len(PHASES))

LAYERS = 61
#: A shape of its own that is refused: 12,288 rows of 64 heads with LSE in 394 MiB.
REFUSED = 12_288
#: Words of an account: where it is, which slot it writes, whether that one is described; then of
#: each slot the calls begun, made and come back; then of each shape the calls begun and made.
PHASE, SLOTS, READY = 0, 1, 2
TOTALS, MOST_SLOTS = 8, 4096
SHAPES = TOTALS + 3 * MOST_SLOTS
MOST_SHAPES = 30_000
ACCOUNT_BYTES = 8 * (SHAPES + 2 * MOST_SHAPES)
BEGUN, MADE, RETURNED = range(3)


def heads_of(batch: int) -> int:
    """A shape's numbers say which it is: one that is torn contradicts itself."""
    return 64 if batch == REFUSED else 1 + batch % 127


def q_len_of(batch: int) -> int:
    return 1 if batch == REFUSED else 1 + batch % 5


class Life:
    """One life: a slot at a time, and calls under the probe."""

    def __init__(self, board: str, rank: str, account: str, contract: Contract) -> None:
        with open(account, "r+b") as file:
            memory = mmap.mmap(file.fileno(), ACCOUNT_BYTES)
        self.words = memoryview(memory).cast("Q")
        self._board, self._rank = Board(board), rank
        self._decode = Decode(contract)
        self._arguments: dict[int, tuple[Any, ...]] = {}
        self._mark_phases()

    def open(self) -> None:
        layout = self._decode.contract.layout
        assert layout is not None
        told = {"engine": "0", "rank": self._rank, "layout": layout.name, "contract": "verified"}
        self._total = TOTALS + 3 * self.words[SLOTS]
        self.recorder = Recorder(self._board, layout, list(OPS.values()), told)
        self._op = self._decode.over(self._native, self.recorder)

    def close(self) -> None:
        self.words[SLOTS] += 1
        self.recorder.close(keep_evidence=False)

    def call(self, batch: int, times: int = 1) -> None:
        words, op, total = self.words, self._op, self._total
        arguments = self._arguments.get(batch)
        if arguments is None:
            heads, q_len = heads_of(batch), q_len_of(batch)
            arguments = self._decode.arguments(
                batch, heads=heads, q_len=q_len, lse=batch == REFUSED
            )
            self._arguments[batch] = arguments
        for _ in range(times):
            words[SHAPES + 2 * batch + BEGUN] += 1
            words[total + BEGUN] += 1
            words[PHASE] = CALL
            try:
                op(*arguments)
            except RuntimeError as error:
                assert str(error) == REFUSAL  # noqa: PT017 - in a process of its own
            words[PHASE] = BETWEEN
            words[total + RETURNED] += 1

    def _native(self, *args: Any) -> None:
        batch = self._decode.batch_of(args)
        self.words[SHAPES + 2 * batch + MADE] += 1
        self.words[self._total + MADE] += 1
        if batch == REFUSED:
            raise RuntimeError(REFUSAL)

    def _mark_phases(self) -> None:
        marked = self._marked
        for name, phase in (
            ("begin_run", RUN),
            ("add_row", ROW),
            ("_fold", FOLD),
            ("describe", DOCUMENT),
            ("close", CLOSING),
        ):
            setattr(Slot, name, marked(getattr(Slot, name), phase))
        create = classmethod(marked(vars(Slot)["_create"].__func__, MAKING))
        setattr(Slot, "_create", create)  # noqa: B010 - as above
        vars(ws_guard.board)["remove_dead"] = marked(remove_dead, TIDYING)

    def _marked(self, function: Callable[..., Any], phase: int) -> Callable[..., Any]:
        words = self.words

        def within(*args: Any, **kwargs: Any) -> Any:
            before, words[PHASE] = words[PHASE], phase
            try:
                return function(*args, **kwargs)
            finally:
                words[PHASE] = before

        return within


# -- what a life does -------------------------------------------------------------------------


def serve(life: Life) -> None:
    """Steps of 20 known shapes, each with a new one and an overflow now and then."""
    for step in itertools.count():
        for batch in range(1, 21):
            life.call(batch, LAYERS)
        life.call(21 + step % 9_000)
        if step % 5 == 4:
            life.call(REFUSED)


def document(life: Life) -> None:
    """A document after each call, of changing length."""
    for number in itertools.count():
        life.recorder.describe(info={"text": f"{number} " * (number % 1000)})
        life.call(1 + number % 3)


def rows(life: Life) -> None:
    """Nothing but new shapes, until the table is nearly full."""
    for batch in itertools.chain(range(1, REFUSED), itertools.repeat(1)):
        life.call(batch)


def fold(life: Life) -> None:
    """Shapes beyond the table, each a worse one than those before it."""
    for batch in itertools.count(REFUSED + 1):
        life.call(min(batch, MOST_SHAPES - 1))


def come_and_go(life: Life) -> None:
    """Short lives of slots, each ended in good order."""
    while life.words[SLOTS] < MOST_SLOTS - 1:
        life.call(1, 3)
        life.close()
        life.open()


KINDS = {each.__name__: each for each in (serve, document, rows, fold, come_and_go)}


def fill_table(life: Life) -> None:
    from ws_guard.board import Shape

    blank = Shape(0, 0, 0, 1, 1, False, 1, 0, 148, 576, 512, 0, None, None, 1)
    for number in range(EXACT_ROWS):
        life.recorder.slot.add_row(blank._replace(batch=1 << 16, heads=1 + number), 0)


def live(board: str, kind: str, rank: str, account: str, contract: Contract) -> NoReturn:
    life = Life(board, rank, account, contract)
    life.open()
    if kind == "fold":
        fill_table(life)
    life.words[READY] = 1
    KINDS[kind](life)
    os._exit(3)


def main(board: str) -> None:
    contract = installed_contract()
    Decode(contract)
    for line in sys.stdin:
        if line.strip().isdigit():
            _, status = os.waitpid(int(line), 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            kind, rank, account = line.split()
            live(board, kind, rank, account, contract)
        print(pid, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
