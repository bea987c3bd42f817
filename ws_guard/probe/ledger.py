"""The accounts of one op: which shapes it was called with, and what is to be expected of each.

The hot path (`native_op`) counts calls like the one before by itself; what is new, refused or
doubtful comes here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ws_guard import sizing
from ws_guard.board import Outcome, Shape
from ws_guard.board.format import COUNT_CAPTURED, COUNT_EAGER, COUNT_TUNING, SUM_EAGER, pack_run
from ws_guard.sizing import Call

from .calls import NO_RUN, Alike, Handling, Key, Known, NativeCall, Run
from .graphs import Graphs
from .guard import WELL, Done, Guard, Trouble
from .recorder import Recorder
from .tuning import Tuning

#: Shapes kept in memory; beyond them every call of a new shape takes the slow way.
_MAX_SHAPES = 24_576
#: Calls of a shape that come here before the hot path counts them by itself: how a workspace is
#: used shows in the first ones.
_FIRST_CALLS = 4


class Row(NamedTuple):
    """Where calls of a shape are counted: its number in the slot, and the first of its words."""

    number: int
    first_word: int
    folded: bool


class _Judged(NamedTuple):
    """A shape: its row, and what may go wrong with it."""

    row: Row
    trouble: Trouble | None


class Ledger:
    """Accounts for the calls of one op."""

    def __init__(
        self,
        recorder: Recorder,
        op: str,
        tuning: Tuning | None = None,
        graphs: Graphs | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.op = op
        self.recorder = recorder
        self.tuning = tuning or Tuning()
        #: Its number in the slot, which is also its lane there.
        self.lane = recorder.op_number(op)
        #: For the hot path: what it compares a call with, the shapes that it may count by itself,
        #: and the ring word of the current run, without its time.
        self.run: Run = NO_RUN
        self.known: dict[Key, Known] = {}
        self.ring_code = 0
        #: Whether the tokens of the whole batch decide the carve: layout A's ragged entry alone.
        self.per_token = sizing.ENTRY_OF_OP[op] == "ragged" and recorder.layout.name == "A"
        self._graphs = graphs or Graphs(recorder)
        self._guard = guard or Guard(recorder)
        self._shapes: dict[Key, _Judged] = {}
        self._set_aside: dict[Key, Known] = self.known
        recorder.on_new_slot.append(self._start_over)
        self._graphs.on_capture.append(self._pause)
        self.tuning.on_change.append(self._pause)

    def _start_over(self) -> None:
        self._shapes.clear()
        self._set_aside = {}
        self._pause()

    def _pause(self) -> None:
        """While a graph is captured, or FlashInfer tunes, every call comes here."""
        paused = self._graphs.capturing or self.tuning.active
        self.known = {} if paused else self._set_aside
        self.end_run()

    def end_run(self) -> None:
        """Have the next call looked up, whatever it is like."""
        self.run = NO_RUN
        self.ring_code = 0

    def meet(
        self, key: Key, alike: Alike, args: tuple[Any, ...], read: Callable[[], NativeCall]
    ) -> Handling | None:
        """Record a call before it is made; returns how to make it if not as it came."""
        with self.recorder.lock:
            self.recorder.attach_if_pending()
            judged = self._shapes.get(key)
            if judged is None:
                judged = self._judge(read(), key)
            row, trouble = judged
            if self.tuning.active:
                self._count(row, COUNT_TUNING)
                self._go_on(row, Outcome.TUNING)
                return self._guard.while_tuning(self.op, trouble, read) if trouble else None
            capture = self._graphs.capture_of_this_call()
            self._count(row, COUNT_EAGER if capture is None else COUNT_CAPTURED)
            if capture is None and row.folded:
                self.recorder.slot.words[row.first_word + SUM_EAGER] += alike.batch
            done = WELL if trouble is None else self._beware(row, trouble, args, read())
            if done is WELL:
                self._go_on(row, Outcome.EAGER if capture is None else Outcome.CAPTURED)
            if capture is not None:
                capture.add(self, key, read, done)
            elif trouble is None:
                self._learn(key, row, alike)
            return done.handling

    def row_of(self, key: Key, native: NativeCall) -> Row:
        """The row of a shape in the slot as it is now."""
        judged = self._shapes.get(key) or self._judge(native, key)
        return judged.row

    def _count(self, row: Row, mode: int) -> None:
        self.recorder.slot.words[row.first_word + mode] += 1

    def _learn(self, key: Key, row: Row, alike: Alike) -> None:
        """Let the hot path count calls of a harmless shape, once its first ones were seen."""
        slot, word = self.recorder.slot, row.first_word + COUNT_EAGER
        if slot.words[word] >= _FIRST_CALLS and key in self._shapes:
            run = (*alike, slot.words, word, slot.last_call)
            sum_word = row.first_word + SUM_EAGER if row.folded else 0
            self._set_aside[key] = Known(run, pack_run(0, row.number, Outcome.EAGER), sum_word)

    def _go_on(self, row: Row, outcome: Outcome) -> None:
        """Note a call that went well: another of the current run, or the first of a new one."""
        slot, code = self.recorder.slot, pack_run(0, row.number, outcome)
        if self.ring_code == code:
            slot.last_call[self.lane] = time.monotonic()
            return
        self.end_run()
        self.ring_code = code
        slot.begin_run(self.lane, row.number, outcome)

    def _beware(
        self, row: Row, trouble: Trouble, args: tuple[Any, ...], native: NativeCall
    ) -> Done:
        """Have the guard decide about a call that may go wrong, and note what it did."""
        kind = trouble.kind(native, self.recorder.layout)
        if kind is None:
            return WELL
        done = self._guard.handle(self.op, kind, trouble, native, args)
        self.end_run()
        self.recorder.slot.begin_run(self.lane, row.number, done.outcome)
        self.recorder.add_event(self.op, kind, done.action)
        return done

    # -- new shapes ---------------------------------------------------------------------------

    def _judge(self, native: NativeCall, key: Key) -> _Judged:
        layout, address = self.recorder.layout, native.workspace_address
        call = self._call(native)
        answer = sizing.carve(call, layout, native.workspace_bytes, address)
        trouble = None
        # An empty step is harmless: its LSE is an empty tensor, for which nothing is carved.
        if native.batch > 0 and (
            not answer.ok or sizing.overruns(call, layout, native.workspace_bytes, address)
        ):
            trouble = Trouble(call, answer.refused, answer.scratch_available or 0)
        judged = _Judged(self._add_row(native, call), trouble)
        if len(self._shapes) < _MAX_SHAPES:
            self._shapes[key] = judged
        return judged

    def _call(self, native: NativeCall) -> Call:
        return Call(
            entry=sizing.ENTRY_OF_OP[self.op],
            heads=native.heads,
            batch=native.batch,
            q_len=native.q_len,
            lse=native.lse,
            sm_count=native.sm_count,
            sum_q=native.sum_q if self.per_token else None,
            counter_buffer_bytes=native.counter_buffer_bytes,
            dims=native.dims,
        )

    def _add_row(self, native: NativeCall, call: Call) -> Row:
        recorder = self.recorder
        shape = Shape(
            op=self.lane,
            workspace=recorder.workspace_number(native.workspace_address, self.op),
            batch=call.batch,
            heads=call.heads,
            q_len=call.q_len,
            lse=call.lse,
            workspace_bytes=native.workspace_bytes,
            address_mod_16=native.workspace_address % 16,
            sm_count=call.sm_count,
            qk=native.dims.qk,
            vo=native.dims.vo,
            top_k=native.dims.top_k,
            sum_q=call.sum_q,
            counter_buffer_bytes=call.counter_buffer_bytes,
            first_seen_ns=time.time_ns(),
        )
        need = sizing.need(call, recorder.layout, native.workspace_address).total
        return Row(*recorder.slot.add_row(shape, need))

    # -- what became of a call ----------------------------------------------------------------

    def native_failed(self, error: Exception) -> None:
        """A native call raised that was not expected to."""
        self.recorder.native_failed(self.op, False, error, tuning=self.tuning.active)
