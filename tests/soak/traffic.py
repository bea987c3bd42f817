"""What the workers do: steps of an engine, made at the native boundary and written into the book.

The ops are those that FlashInfer's own `JitSpec.build_and_load` gives while a probe is installed:
the real launcher, compiled for the CPU. Whether it refuses a shape is asked of the same launcher
without a probe. Graphs are torch's own Python over a CUDA of a few dictionaries, as everywhere in
the tests: a replay launches nothing, and is counted.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from book import BEGUN, DONE, Book, Header, call_cell, event_cell, sum_cell

from ws_guard import WorkspaceOverflowError
from ws_guard.sizing import LAYOUTS, OPS, Call, Entry, overruns

if TYPE_CHECKING:
    from graph_stage import Cuda
    from native_ops import NativeOps

MIB = 1 << 20
HEADS, SM_COUNT = 64, 148
WORKSPACE_BYTES: dict[Entry, int] = {
    "decode": 394 * MIB,
    "context": 256 * MIB,
    "ragged": 256 * MIB,
    "dsv4": 128 * MIB,
}
#: Calls of one shape in a row: the layers of a model, or a lone call.
LAYERS = (1, 16, 27, 32, 61)
#: How often each entry is stepped.
_WEIGHTS: dict[Entry, int] = {"decode": 70, "context": 12, "ragged": 10, "dsv4": 8}
_PALETTE = 12
_FRESH, _REPLAY, _OVERFLOW, _TUNE = 0.01, 0.1, 0.004, 0.005
_GRAPHS, _GRAPH_CALLS = 3, 8
_TRIES = 100


class Step(NamedTuple):
    """One shape, ready to be called: its entry, its arguments, and where it is counted.

    `eager` is the cell of the book for its eager calls, `action` what a probe does about it where
    the launcher refuses it.
    """

    entry: Entry
    arguments: list[Any]
    batch: int
    eager: int
    action: str


class Traffic:
    """The steps of one worker's life."""

    def __init__(
        self, native: NativeOps, module: Any, layout: str, book: Book, on_overflow: str, seed: int
    ) -> None:
        """`native` is the launcher without a probe, `module` the one with."""
        import torch

        self._native, self._module, self._book = native, module, book
        self._layout = LAYOUTS[layout]
        self._on_overflow = on_overflow
        self._random = random.Random(seed)  # noqa: S311 - repeatable
        self._workspaces = {
            entry: torch.empty(size, dtype=torch.uint8) for entry, size in WORKSPACE_BYTES.items()
        }
        self._entries = [entry for entry in _WEIGHTS if hasattr(module, OPS[entry])]
        self._palette = {
            entry: [self.fresh(entry) for _ in range(_PALETTE)] for entry in self._entries
        }
        self._graphs: list[tuple[Any, list[Step]]] = []

    # -- shapes ---------------------------------------------------------------------------------

    def fresh(self, entry: Entry, *, refused: bool = False) -> Step:
        """A shape at random that the launcher takes, or one that it refuses."""
        for _ in range(_TRIES):
            call = self._draw(entry, refused)
            size, buffer = WORKSPACE_BYTES[entry], self._workspaces[entry]
            if overruns(call, self._layout, size, buffer.data_ptr()):
                continue
            if self._native.carve(call, size).ok is not refused:
                return self._step(call)
        raise RuntimeError(f"no shape of {entry} found, refused={refused}")

    def _draw(self, entry: Entry, large: bool) -> Call:
        below = 3_000 if entry in ("decode", "dsv4") else 300
        batch = round(2 ** self._random.uniform(0, below.bit_length() - 1))
        if large:
            batch = self._random.randint(3_081, 16_384)
        if entry in ("decode", "dsv4"):
            return Call(entry, HEADS, batch, lse=entry == "decode", sm_count=SM_COUNT)
        q_len = self._random.choice((1, 16, 64))
        sum_q = self._random.randint(batch, batch * q_len)
        return Call(entry, HEADS, batch, q_len, lse=large, sm_count=SM_COUNT, sum_q=sum_q)

    def _step(self, call: Call) -> Step:
        import torch

        size, buffer = WORKSPACE_BYTES[call.entry], self._workspaces[call.entry]
        named = {"workspace_buffer": buffer}
        if call.entry == "decode":  # a line for each row: what a split cuts along
            named["block_tables"] = torch.empty(1, dtype=torch.int32).expand(call.batch, 2)
        arguments = self._native.arguments(call, size, **named)
        eager = call_cell(OPS[call.entry], "eager", call.batch)
        return Step(call.entry, arguments, call.batch, eager, self._action(call.entry))

    def _action(self, entry: Entry) -> str:
        if self._on_overflow == "observe":
            return "observed"
        return "split" if self._on_overflow == "split" and entry == "decode" else "raised"

    # -- graphs ---------------------------------------------------------------------------------

    def capture_graphs(self, cuda: Cuda, graphs: Any) -> None:
        """Capture some graphs of decode steps, as an engine does at its start."""
        words = self._book.words
        for _ in range(_GRAPHS):
            graph = graphs.CUDAGraph()
            steps = [self._random.choice(self._palette["decode"]) for _ in range(_GRAPH_CALLS)]
            with cuda.on("side"):
                graph.capture_begin()
                for step in steps:
                    cell = call_cell(OPS[step.entry], "captured", step.batch)
                    words[BEGUN + cell] += 1
                    getattr(self._module, OPS[step.entry])(*step.arguments)
                    words[DONE + cell] += 1
                graph.capture_end()
            self._graphs.append((graph, steps))

    def replay(self) -> None:
        """Replay one of the graphs."""
        graph, steps = self._random.choice(self._graphs)
        self._note_replay(BEGUN, steps)
        graph.replay()
        self._note_replay(DONE, steps)

    def _note_replay(self, side: int, steps: list[Step]) -> None:
        words = self._book.words
        for step in steps:
            words[side + call_cell(OPS[step.entry], "replayed", step.batch)] += 1
            words[side + sum_cell(OPS[step.entry])] += step.batch

    # -- steps ----------------------------------------------------------------------------------

    def step(self, *, always_fresh: bool = False) -> int:
        """Make one step at random; how many calls Python made in it."""
        chance = self._random.random()
        if chance < _OVERFLOW:
            return self.overflow()
        if chance < _OVERFLOW + _TUNE:
            return self.tune()
        if chance < _OVERFLOW + _TUNE + _REPLAY and self._graphs:
            self.replay()
        (entry,) = self._random.choices(self._entries, [_WEIGHTS[entry] for entry in self._entries])
        place = self._random.randrange(_PALETTE)
        if always_fresh or self._random.random() < _FRESH:
            self._palette[entry][place] = self.fresh(entry)
        layers = self._random.choice(LAYERS)
        self._call(self._palette[entry][place], layers)
        return layers

    def _call(self, step: Step, layers: int) -> None:
        """The hot loop: as little beside the call itself as can be."""
        words, arguments, batch = self._book.words, step.arguments, step.batch
        op = getattr(self._module, OPS[step.entry])
        total = sum_cell(OPS[step.entry])
        begun, begun_sum = BEGUN + step.eager, BEGUN + total
        done, done_sum = DONE + step.eager, DONE + total
        words[Header.AT_WORK] = 1
        for _ in range(layers):
            words[begun] += 1
            words[begun_sum] += batch
            op(*arguments)
            words[done] += 1
            words[done_sum] += batch
        words[Header.AT_WORK] = 0

    def overflow(self) -> int:
        """A step that the launcher refuses, and what the probe was told to do about it."""
        step = self.fresh(self._random.choice(("decode", "context")), refused=True)
        cells = {
            step.eager: 1,
            sum_cell(OPS[step.entry]): step.batch,
            event_cell(OPS[step.entry], step.action): 1,
        }
        self._add(BEGUN, cells)
        happened = "split"
        try:
            getattr(self._module, OPS[step.entry])(*step.arguments)
        except WorkspaceOverflowError:
            happened = "raised"
            self._book.words[Header.LAST_RAISED_NS] = time.monotonic_ns()
        except RuntimeError:
            happened = "observed"
        self._add(DONE, cells)
        self._book.words[Header.SURPRISES] += happened != step.action
        return 1

    def tune(self) -> int:
        """A call as FlashInfer's autotuner makes them."""
        from flashinfer.autotuner import AutoTuner

        step = self._random.choice(self._palette["decode"])
        cells = {call_cell(OPS[step.entry], "tuning", step.batch): 1}
        tuner = AutoTuner.get()
        self._add(BEGUN, cells)
        tuner.is_tuning_mode = True
        getattr(self._module, OPS[step.entry])(*step.arguments)
        tuner.is_tuning_mode = False
        self._add(DONE, cells)
        return 1

    def _add(self, side: int, cells: dict[int, int]) -> None:
        for cell, much in cells.items():
            self._book.words[side + cell] += much
