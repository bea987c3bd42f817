"""Slots changed at random, then read: `python tests/exporter/fuzz_slots.py --inputs 1000000`.

Every input goes through reader and derivation; one in a hundred through checks, metrics and page as
well. Whatever is no `SlotError` ends it, with the number that makes the input again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TextIO

from prometheus_client import generate_latest

sys.path.insert(0, str(Path(__file__).parent))

from slot_mutations import MUTATIONS, mutate
from slot_worker import SlotWorker, busy

from ws_guard.board import Board, SlotError, SlotReader
from ws_guard.board.format import SLOT_BYTES
from ws_guard.exporter import page
from ws_guard.exporter.checks import examine
from ws_guard.exporter.collector import board_registry
from ws_guard.exporter.derive import Deriver
from ws_guard.exporter.events import EventLog
from ws_guard.exporter.refresh import Refresher
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.settings import read_settings

if TYPE_CHECKING:
    from slot_mutations import Patch

#: Inputs between two that go all the way.
_STRIDE = 100
#: Inputs that one reader sees one after the other.
_READER_LIFE = 8


class Bench:
    """One slot on a board, and all that looks at it."""

    def __init__(self, folder: str, silence: TextIO) -> None:
        self._board = Board(os.path.join(folder, "board"))
        worker = busy(lambda **told: SlotWorker(self._board, **told))
        self.document = worker.document
        self._name = worker.name
        self._real = Path(self._board.path, self._name).read_bytes()
        worker.die()
        self._fd = os.open(Path(self._board.path, self._name), os.O_RDWR)
        self._directory = os.open(self._board.path, os.O_RDONLY)
        settings, _ = read_settings({"WS_GUARD_BOARD": self._board.path})
        self._refresher = Refresher(BoardWatch(self._board), EventLog(silence))
        self._settings = settings
        self._registry = board_registry(self._refresher.latest, settings)
        self._eyes = SlotReader(self._name), Deriver()

    def put(self, patches: list[Patch], length: int) -> None:
        """Make the file such an input."""
        for place, data in patches:
            os.pwrite(self._fd, data, place)
        if length != SLOT_BYTES:
            os.ftruncate(self._fd, length)

    def take_back(self, patches: list[Patch], length: int) -> None:
        """Make the file the real slot again."""
        if length != SLOT_BYTES:
            os.pwrite(self._fd, self._real[length:], length)
        for place, data in patches:
            os.pwrite(self._fd, self._real[place : place + len(data)], place)

    def look(self, fresh: bool) -> str:
        """Read and derive; why it was refused, or nothing."""
        if fresh:
            self._eyes = SlotReader(self._name), Deriver()
        reader, deriver = self._eyes
        try:
            view = reader.read(self._board, self._directory)
        except (SlotError, OSError) as error:
            return str(error)
        if view.document and not view.closed:
            deriver.observe(view)
        return ""

    def go_all_the_way(self) -> None:
        """All that is answered about such a board."""
        health = examine(self._refresher.refresh(), self._settings)
        json.dumps(asdict(health), allow_nan=False)
        generate_latest(self._registry).decode()
        page.render(health, self._refresher.log.recent)


def fuzz(inputs: int, seed: int, first: int = 0) -> Counter[str]:
    """So many inputs; how many were read, and why the others were not."""
    tally: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, open(os.devnull, "w") as silence:
        bench = Bench(folder, silence)
        for number in range(first, first + inputs):
            random = Random(f"{seed}/{number}")  # noqa: S311 - to be made again
            patches, length = mutate(random, bench.document)
            bench.put(patches, length)
            try:
                why = bench.look(fresh=number % _READER_LIFE == 0)
                if number % _STRIDE == 0:
                    bench.go_all_the_way()
            except BaseException:
                print(f"input {number} of seed {seed}: --seed {seed} --first {number}")
                raise
            bench.take_back(patches, length)
            tally["read" if not why else " ".join(why.split()[:4])] += 1
    return tally


def main() -> None:
    """Fuzz, and print what became of the inputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--first", type=int, default=0)
    told = parser.parse_args()
    begun = time.monotonic()
    tally = fuzz(told.inputs, told.seed, told.first)
    print(f"{told.inputs:,} inputs of {len(set(MUTATIONS))} kinds, seed {told.seed}, no crash")
    print(f"{time.monotonic() - begun:.0f} s; {tally['read']:,} were read, refused were:")
    for why, count in tally.most_common(12):
        if why != "read":
            print(f"{count:>9,}  {why} ...")


if __name__ == "__main__":
    main()
