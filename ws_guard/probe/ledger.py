"""The accounts of one op: which shapes it was called with, and what is to be expected of each.

The hot path (`native_op`) counts calls of known, harmless shapes by itself; what is new, refused or
doubtful comes here, and so does every call while a graph is captured or FlashInfer tunes.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from ws_guard import sizing
from ws_guard.board import Outcome, Shape
from ws_guard.board.format import (
    COUNT_CAPTURED,
    COUNT_EAGER,
    COUNT_TUNING,
    RING_OFFSET,
    SUM_EAGER,
    Header,
    pack_run,
)
from ws_guard.foreign import Foreign
from ws_guard.sizing import Call

from . import hot
from .calls import NO_RUN, Handling, Key, Known, Like, Met, NativeCall, NativeFunction, Row, Run
from .graphs import GraphAccount
from .guard import WELL, Done, Trouble
from .hot import Front
from .parts import Parts
from .provisions import Provision
from .recorder import Recorder

#: Shapes kept in memory; beyond them every call of a new shape takes the slow way.
_MAX_SHAPES = 24_576
#: Calls of a shape that come here before the hot path counts them by itself: how a workspace is
#: used shows in the first ones.
_FIRST_CALLS = 4


class _Judged(NamedTuple):
    """A shape: its row, and what may go wrong with it."""

    row: Row
    trouble: Trouble | None


class Ledger:
    """Accounts for the calls of one op."""

    def __init__(self, recorder: Recorder, op: str, parts: Parts | None = None) -> None:
        """`parts` is what the ledgers of a process share; by default this one has its own."""
        self.op = op
        self.recorder = recorder
        self._parts = parts or Parts.of(recorder)
        #: Its number in the slot, which is also its lane there.
        self.lane = recorder.op_number(op)
        #: For the hot path: what it compares a call with where that is not done in C, the shapes
        #: that it may count by itself, and its part in C.
        self.run: Run = NO_RUN
        self.known: dict[Key, Known] = {}
        self.hot_lane = hot.Lane()
        self._compares = isinstance(self.hot_lane, hot.PlainLane)
        #: Whether the tokens of the whole batch decide the carve: layout A's ragged entry alone.
        self.per_token = sizing.ENTRY_OF_OP[op] == "ragged" and recorder.layout.name == "A"
        self._shapes: dict[Key, _Judged] = {}
        self._rows: dict[Shape, Row] = {}
        self._set_aside: dict[Key, Known] = self.known
        # In this order: what the lane is told until then, it forgets.
        recorder.before_new_slot.extend((self._start_over, self.hot_lane.forget))
        self._parts.graphs.on_capture.append(self._pause)
        self._parts.tuning.on_change.append(self._pause)
        self._parts.provisions.on_new.append(self._unlearn)

    def _start_over(self) -> None:
        """Let go of the slot: first of all what the hot path holds of it."""
        self.known = self._set_aside = {}
        self._pause()
        self._shapes.clear()
        self._rows.clear()

    def _unlearn(self) -> None:
        self._set_aside = {}
        self._pause()

    def _pause(self) -> None:
        """While a graph is captured, or FlashInfer tunes, every call comes here."""
        # One may begin in another thread while the end of the other is told in this one.
        with self.recorder.lock:
            paused = self._parts.graphs.capturing or self._parts.tuning.active
            self.known = {} if paused else self._set_aside
            self.hot_lane.forget()
            self.run = NO_RUN

    def end_run(self) -> None:
        """Have the next call looked up, whatever it is like."""
        self.hot_lane.ring_code = 0
        self.run = NO_RUN

    def follow(self, known: Known, shapes: dict[Key, Known], owner: object) -> None:
        """From now on the hot path counts calls like this one, found in `shapes`.

        `owner` is the function that was called. A capture, tuning or another slot may have come
        meanwhile, or come at any line of this: in another thread, a finalizer, a tracer. They
        change `known` first and then have the lane forget, which follows nothing told before.
        """
        if self._compares:
            if self.known is shapes and not known.sum_word:
                self.run = known.run
            return
        lane = self.hot_lane
        told = lane.times_forgotten, owner, *known.front, known.run[0], known.ring_code
        if self.known is shapes:
            lane.follow(*told, known.addresses)

    def meet(self, met: Met) -> Handling | None:
        """Record a call before it is made; returns how to make it if not as it came."""
        with self.recorder.lock:
            self.recorder.attach_if_pending()
            if self._parts.tuning.active:
                return self._tune(met)
            capture = self._parts.graphs.capture_of_this_call()
            own = self._instead(met, capture)
            if own is None:
                self._see(met, capture)
                if self._parts.provisions.serves(self.op, met.address):
                    # From another stream: the hot path, which sees no streams, must not learn it.
                    met = met._replace(like=None)
                return self._account(met, capture)
            # Not for the hot path, which would make the call as it came.
            args = met.where.with_workspace(met.args, own.workspace)
            met = met._replace(key=(*met.key, own.address), like=None, args=args)
            return _with_arguments(args, self._account(met, capture))

    def native_failed(self, error: Exception) -> None:
        """A native call raised that was not expected to."""
        tuning = self._parts.tuning.active
        self.recorder.native_failed(self.op, False, error, tuning=tuning)

    def row_of(self, met: Met) -> Row:
        """The row of a shape in the slot as it is now."""
        return self._judged(met).row

    def _instead(self, met: Met, capture: GraphAccount | None) -> Provision | None:
        return self._parts.provisions.instead(self.op, met, captured=capture is not None)

    def _see(self, met: Met, capture: GraphAccount | None) -> None:
        """Look at how the workspace is used; what goes wrong in that leaves the account whole."""
        try:
            self._parts.hygiene.see(self.op, met, captured=capture is not None)
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            self.recorder.stumbled(error)

    def _tune(self, met: Met) -> Handling | None:
        """Count a synthetic call of FlashInfer's autotuner."""
        row, trouble = self._judged(met)
        self._count(row, COUNT_TUNING)
        self._go_on(row, Outcome.TUNING)
        if trouble is None:
            return None
        return self._parts.guard.while_tuning(self.op, trouble, met.read(), met.address)

    def _account(self, met: Met, capture: GraphAccount | None) -> Handling | None:
        row, trouble = self._judged(met)
        self._count(row, COUNT_EAGER if capture is None else COUNT_CAPTURED)
        if capture is None and row.folded:
            self.recorder.slot.words[row.first_word + SUM_EAGER] += met.batch
        done = WELL if trouble is None else self._beware(row, trouble, met)
        if done is WELL:
            self._go_on(row, Outcome.EAGER if capture is None else Outcome.CAPTURED)
        if capture is not None:
            capture.add(self, met, done)
        elif trouble is None and met.like is not None:
            self._learn(met.key, row, met.like, met.front)
        return done.handling

    def _count(self, row: Row, mode: int) -> None:
        self.recorder.slot.words[row.first_word + mode] += 1

    def _learn(self, key: Key, row: Row, like: Like, front: Front) -> None:
        """Let the hot path count calls of a harmless shape, once its first ones were seen."""
        slot, word = self.recorder.slot, row.first_word + COUNT_EAGER
        if slot.words[word] >= _FIRST_CALLS and key in self._shapes:
            sum_word = row.first_word + SUM_EAGER if row.folded else 0
            run = (*like, slot.words, word, slot.last_call)
            code = pack_run(0, row.number, Outcome.EAGER)
            addresses = () if self._compares else self._addresses(word, sum_word)
            self._set_aside[key] = Known(run, front, code, sum_word, addresses)

    def _addresses(self, word: int, sum_word: int) -> tuple[Any, ...]:
        """Where the part in C counts calls of a shape, sums up their batches, and notes runs."""
        slot = self.recorder.slot
        return (
            slot.address_of(word),
            slot.address_of(sum_word) if sum_word else 0,
            slot.address_of(Header.LAST_CALL + self.lane),
            slot.address_of(Header.LAST_RUN + self.lane),
            slot.address_of(RING_OFFSET // 8),
            slot.next_place,
        )

    def _go_on(self, row: Row, outcome: Outcome) -> None:
        """Note a call that went well: another of the current run, or the first of a new one."""
        slot, code = self.recorder.slot, pack_run(0, row.number, outcome)
        if self.hot_lane.ring_code == code:
            slot.last_call[self.lane] = time.monotonic()
            return
        self.end_run()
        self.hot_lane.ring_code = code
        slot.begin_run(self.lane, row.number, outcome)

    def _beware(self, row: Row, trouble: Trouble, met: Met) -> Done:
        """Have the guard decide about a call that may go wrong, and note what it did."""
        native = met.read()
        kind = trouble.kind(native, self.recorder.layout)
        if kind is None:
            return WELL
        done = self._parts.guard.handle(self.op, kind, trouble, native, met.args, met.address)
        self.end_run()
        self.recorder.slot.begin_run(self.lane, row.number, done.outcome)
        self.recorder.add_event(self.op, kind, done.action)
        return done

    # -- new shapes ---------------------------------------------------------------------------

    def _judged(self, met: Met) -> _Judged:
        known = self._shapes.get(met.key)
        if known is not None:
            return known
        native, layout = met.read(), self.recorder.layout
        call = self._call(native)
        size, address = native.workspace_bytes, native.workspace_address
        answer = sizing.carve(call, layout, size, address)
        trouble = None
        # An empty step is harmless: its LSE is an empty tensor, for which nothing is carved.
        if native.batch > 0 and (not answer.ok or sizing.overruns(call, layout, size, address)):
            trouble = Trouble(call, answer.refused, answer.scratch_available or 0)
        judged = _Judged(self._row(call, native, met.address), trouble)
        if len(self._shapes) < _MAX_SHAPES:
            self._shapes[met.key] = judged
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
            kv_heads=native.kv_heads,
            sm90_fp8=native.sm90_fp8,
        )

    def _row(self, call: Call, native: NativeCall, named_by: int) -> Row:
        """A row for the shape of a call; its workspace is named by the address that was brought."""
        shape = Shape(
            op=self.lane,
            workspace=self.recorder.workspace_number(named_by, self.op),
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
            first_seen_ns=0,
            kv_heads=call.kv_heads or 0,
            sm90_fp8=bool(call.sm90_fp8),
        )
        # Keys may tell apart what no slab depends on: those share a row.
        row = self._rows.get(shape)
        if row is None:
            need = sizing.need(call, self.recorder.layout, native.workspace_address).total
            seen = shape._replace(first_seen_ns=time.time_ns())
            row = Row(*self.recorder.add_row(seen, need))
            if len(self._rows) < _MAX_SHAPES:
                self._rows[shape] = row
        return row


def _with_arguments(args: tuple[Any, ...], handling: Handling | None) -> Handling:
    """Makes a call with other arguments than it came with."""

    def make(native: NativeFunction, _args: tuple[Any, ...]) -> Foreign:
        return native(*args) if handling is None else handling(native, args)

    return make
