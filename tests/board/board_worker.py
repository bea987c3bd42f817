"""Shapes and readings for these tests, and workers in processes that can really be killed.

As a script: `board_worker.py BOARD GROUP USER ACTION [SLOT]` opens a slot, says its path on stdout
and acts, or looks at another's slot and says what it sees.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ws_guard.board import Board, Outcome, Shape, Slot, SlotReader, SlotView
from ws_guard.board.format import COUNT_EAGER, EXACT_ROWS, LANES, ROW_BYTES, ROWS_OFFSET
from ws_guard.board.liveness import pid_start_ticks

#: What a slot holds that its worker has left.
LEFT_ROWS = 3
LEFT_BYTES = ROWS_OFFSET + LEFT_ROWS * ROW_BYTES
LEFT_DOCUMENT = {"engine": "0", "rank": "3"}

HAMMERED_ROWS = 300
#: The first batch that a hammered row folds; the last of its power of two is 65,536.
FIRST_FOLDED, LAST_FOLDED = 32_769, 65_536


def make_shape(**changes: Any) -> Shape:
    shape = Shape(
        op=0,
        workspace=0,
        batch=16,
        heads=64,
        q_len=1,
        lse=True,
        workspace_bytes=413_138_944,
        address_mod_16=0,
        sm_count=148,
        qk=576,
        vo=512,
        top_k=0,
        sum_q=None,
        counter_buffer_bytes=None,
        first_seen_ns=1,
    )
    return shape._replace(**changes)


@functools.cache
def woven_shape(number: int) -> Shape:
    """A shape whose every number says which it is: one that is torn contradicts itself."""
    return make_shape(
        batch=number,
        heads=number * 7,
        q_len=number * 11,
        workspace_bytes=number * 1_000_003,
        sum_q=number << 40,
        first_seen_ns=number * 17,
    )


def woven_document(number: int) -> dict[str, object]:
    """The same of a document, of changing length."""
    return {"number": number, "text": f"{number} " * (number % 1000)}


def read(board: Board, path: str | None, reader: SlotReader | None = None) -> SlotView:
    """One reading of the slot at a path, by a new reader unless one is given."""
    assert path is not None
    directory = os.open(board.path, os.O_RDONLY)
    try:
        return (reader or SlotReader(os.path.basename(path))).read(board, directory)
    finally:
        os.close(directory)


def run_script(script: str, *arguments: str) -> str:
    """The output of a script in a process of its own: audit hooks are for life."""
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.check_output(command, env=paths, text=True)


def patch(path: str, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def patch_word(path: str, word: int, value: int) -> None:
    patch(path, 8 * word, value.to_bytes(8, "little"))


class Worker:
    """A worker process with a slot; it has done its action when this returns.

    What it started in its turn ends with `stop`, not with `kill`.
    """

    def __init__(
        self, board: Board, *action: str, prefix: Sequence[str] = (), user: int | None = None
    ) -> None:
        rights = ["" if number is None else str(number) for number in (board.group, user)]
        self.process = subprocess.Popen(
            [*prefix, sys.executable, __file__, board.path, *rights, *action],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.told = self.process.stdout.readline().strip()
        assert self.told

    @property
    def slot(self) -> str:
        """The path of its slot."""
        assert self.told.endswith(".slot"), self.told
        return self.told

    def kill(self) -> None:
        """End it as the kernel's OOM killer would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


# -- what a worker process does ---------------------------------------------------------------


def _told(slot: Slot) -> None:
    """Say that all is in place."""
    print(slot.path, flush=True)


def _wait() -> None:
    os.read(0, 1)


def hold(slot: Slot) -> None:
    _told(slot)
    _wait()


def tell_problem(slot: Slot) -> None:
    print(slot.problem, flush=True)


def leave(slot: Slot) -> None:
    _told(slot)
    _wait()
    slot.close()


def exit_at_once(slot: Slot) -> None:
    _told(slot)
    os._exit(0)


def _fork(slot: Slot, child: Callable[[], None]) -> None:
    ready, told = os.pipe()
    if os.fork() == 0:
        child()
        os.write(told, b"x")
        _wait()
        os._exit(0)
    os.read(ready, 1)
    hold(slot)


def fork(slot: Slot) -> None:
    """A child that keeps all it inherited."""
    _fork(slot, lambda: None)


def fork_and_drop(slot: Slot) -> None:
    """A child that lets go of the slot."""
    _fork(slot, slot.drop)


def spawn(slot: Slot) -> None:
    """A child of `subprocess`, without care for descriptors."""
    subprocess.Popen(["cat"], close_fds=False)
    hold(slot)


def become_another_program(slot: Slot) -> None:
    _told(slot)
    os.execvp("cat", ["cat"])  # noqa: S606 - the point of it


def come_and_go(slot: Slot) -> None:
    """Short lives, one after the other, each ended in good order."""
    board = Board(os.path.dirname(str(slot.path)))
    _told(slot)
    while True:
        slot.close()
        slot = Slot.on_board(board)
        slot.describe({"engine": "0"})


def hammer(slot: Slot) -> None:
    """New rows, counts, runs of every lane and documents without a pause."""
    _told(slot)
    written = 0
    rows: list[tuple[int, int]] = []
    while True:
        written += 1
        if len(rows) < HAMMERED_ROWS and written % 4 == 1:
            number, word, _ = slot.add_row(woven_shape(len(rows) + 1), 0)
            rows.append((number, word))
        number, word = rows[written % len(rows)]
        slot.words[word + COUNT_EAGER] += 1
        slot.begin_run(written % LANES, number, Outcome.EAGER)
        slot.describe(woven_document(written))


def hammer_fold(slot: Slot) -> None:
    """One folded row, whose worst shape is replaced without a pause."""
    for number in range(EXACT_ROWS):
        slot.add_row(woven_shape(number + 1), 0)
    _told(slot)
    need = 0
    while True:
        for batch in range(FIRST_FOLDED, LAST_FOLDED + 1):
            need += 1
            _, word, _ = slot.add_row(woven_shape(batch), need)
            slot.words[word + COUNT_EAGER] += 1


def fill_board_then_write_everywhere(slot: Slot) -> None:
    """Take the last byte of the board's file system, then store into every word of the slot."""
    with open(os.path.join(os.path.dirname(str(slot.path)), "filler"), "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
    for number in range(EXACT_ROWS):
        _, word, _ = slot.add_row(woven_shape(number + 1), 0)
        slot.words[word + COUNT_EAGER] += 1
    slot.describe({"text": "x" * 16_000})
    hold(slot)


ACTIONS: dict[str, Callable[[Slot], None]] = {
    action.__name__: action
    for action in (
        hold,
        tell_problem,
        leave,
        exit_at_once,
        fork,
        fork_and_drop,
        spawn,
        become_another_program,
        come_and_go,
        hammer,
        hammer_fold,
        fill_board_then_write_everywhere,
    )
}


def look(board: Board, path: str) -> None:
    """What /proc and the slot say of another worker."""
    view = read(board, path)
    print(f"start ticks {pid_start_ticks(view.pid)}, alive {view.alive}", flush=True)


def become(user: int) -> None:
    """Give up root for good; done here, since another user may not reach the interpreter."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def main(path: str, group: str, user: str, action: str, *slots: str) -> None:
    if user:
        become(int(user))
    board = Board(path, int(group) if group else None)
    if slots:
        look(board, *slots)
        return
    slot = Slot.on_board(board)
    slot.describe({"engine": "0", "rank": "3"})
    ACTIONS[action](slot)


if __name__ == "__main__":
    main(*sys.argv[1:])
