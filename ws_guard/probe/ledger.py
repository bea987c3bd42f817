"""The accounts of one op: which shapes it was called with, and what is to be expected of each.

The hot path (`native_op`) counts calls of harmless shapes by itself; what is new, refused or
doubtful comes here.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ws_guard import sizing
from ws_guard.board import OVERFLOW, OVERRUN, Outcome, Shape
from ws_guard.board.format import COUNT_EAGER, COUNT_TUNING, SUM_EAGER, pack_call
from ws_guard.sizing import Call, HeadDims

from .recorder import Recorder

#: Shapes kept in memory; beyond them every call of a new shape takes the slow way.
_MAX_ROWS = 24_576

#: What tells shapes apart: all arguments that decide a carve and may change between calls.
Key = tuple[int | bool, ...]


class NativeCall(NamedTuple):
    """The arguments of a native call that matter. Sizes in bytes, lengths in tokens."""

    batch: int
    heads: int
    q_len: int
    lse: bool
    sm_count: int
    workspace_bytes: int
    workspace_address: int
    dims: HeadDims
    max_kv_len: int | None
    sum_q: int
    counter_buffer_bytes: int | None


class Row(NamedTuple):
    """What it takes to count one more call of a shape.

    `count_word` and `sum_word` (0: none) are positions in the slot's words, `ring_code` a ring word
    without its time.
    """

    count_word: int
    sum_word: int
    ring_code: int
    number: int


class _Trouble(NamedTuple):
    """A shape that is refused, or whose scratch may not fit into what is left."""

    row: Row
    call: Call
    refused: sizing.Refusal | None
    scratch_available: int


class Ledger:
    """Accounts for the calls of one op. `rows` holds the harmless shapes, for the hot path."""

    def __init__(self, recorder: Recorder, op: str) -> None:
        self.op = op
        self.recorder = recorder
        #: Whether the tokens of the whole batch decide the carve: layout A's ragged entry alone.
        self.per_token = sizing.ENTRY_OF_OP[op] == "ragged" and recorder.layout.name == "A"
        self.rows: dict[Key, Row] = {}
        self._troubled: dict[Key, _Trouble] = {}
        recorder.on_new_slot.append(self._start_over)

    def _start_over(self) -> None:
        self.rows.clear()
        self._troubled.clear()

    def account(self, native: NativeCall, key: Key, tuning: bool) -> bool:
        """Record one call before it is made; True if the launcher will refuse it."""
        recorder = self.recorder
        with recorder.lock:
            recorder.attach_if_pending()
            trouble = self._troubled.get(key)
            row = trouble.row if trouble else self.rows.get(key)
            if row is None:
                row, trouble = self._judge(native, key)
            if tuning:
                recorder.slot.words[row.count_word - COUNT_EAGER + COUNT_TUNING] += 1
                recorder.slot.record(row.number, Outcome.TUNING)
                return False
            recorder.slot.words[row.count_word] += 1
            if row.sum_word:
                recorder.slot.words[row.sum_word] += native.batch
            outcome = Outcome.EAGER if trouble is None else self._outcome(native, trouble)
            recorder.slot.record(row.number, outcome)
            if outcome in (Outcome.OVERFLOW, Outcome.OVERRUN):
                recorder.add_event(self.op, OVERFLOW if outcome == Outcome.OVERFLOW else OVERRUN)
            return outcome == Outcome.OVERFLOW

    def _judge(self, native: NativeCall, key: Key) -> tuple[Row, _Trouble | None]:
        layout, address = self.recorder.layout, native.workspace_address
        call = self._call(native)
        answer = sizing.carve(call, layout, native.workspace_bytes, address)
        row = self._add_row(native, call)
        trouble = None
        # An empty step is harmless: its LSE is an empty tensor, for which nothing is carved.
        if native.batch > 0 and (
            not answer.ok or sizing.overruns(call, layout, native.workspace_bytes, address)
        ):
            trouble = _Trouble(row, call, answer.refused, answer.scratch_available or 0)
        if len(self.rows) + len(self._troubled) < _MAX_ROWS:
            if trouble is None:
                self.rows[key] = row
            else:
                self._troubled[key] = trouble
        return row, trouble

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
            op=recorder.op_number(self.op),
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
        number, first_word, folded = recorder.slot.add_row(shape, need)
        return Row(
            count_word=first_word + COUNT_EAGER,
            sum_word=first_word + SUM_EAGER if folded else 0,
            ring_code=pack_call(0, number, Outcome.EAGER),
            number=number,
        )

    def _outcome(self, native: NativeCall, trouble: _Trouble) -> Outcome:
        """An overrun is certain only where the scratch is known for this call's KV length."""
        if trouble.refused is not None:
            return Outcome.OVERFLOW if self._refused_again(native, trouble) else Outcome.EAGER
        dims = native.dims
        if native.max_kv_len is not None:
            dims = dims._replace(top_k=min(dims.top_k, native.max_kv_len))
        written = sizing.scratch(trouble.call._replace(dims=dims), self.recorder.layout)
        certain = written.exact and written.bytes > trouble.scratch_available
        return Outcome.OVERRUN if certain else Outcome.EAGER

    def _refused_again(self, native: NativeCall, trouble: _Trouble) -> bool:
        """The external counter is not in the key: each call brings one of its own."""
        if trouble.refused is None or trouble.refused.slab != sizing.EXTERNAL_COUNTER:
            return True
        call = trouble.call._replace(counter_buffer_bytes=native.counter_buffer_bytes)
        layout, address = self.recorder.layout, native.workspace_address
        return not sizing.carve(call, layout, native.workspace_bytes, address).ok
