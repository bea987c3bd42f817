"""The slot file, format version 1: the one place where its bytes are described.

A worker owns one slot and is its only writer; readers take it in with `pread`. All numbers are
little-endian 64-bit words unless said otherwise, so that a word is read whole or not at all. Arm
hosts order nothing between words: what spans several of them carries a checksum.

    offset      bytes       what
    0           4,096       header words, see `Header`
    4,096       2 x 16,384  document, two copies: length, CRC-32, UTF-8 JSON. The header's
                            `document` word counts publications; its lowest bit picks the copy
    36,864      8,192       ring: the last 1,024 runs of calls, one word each, see `pack_run`
    45,056      16,000 x 128  rows, see `Shape` and the COUNT_ words

A run is calls of one shape in a row, as the layers of a model make them. Each op has its current
run, and replays of graphs have one more: these are the lanes. The header says of each lane when its
last call was and what run it belongs to; a call that went wrong is a run of its own.

A row is one shape of call: what decides its slabs. Words 1 to 8 say the shape, word 0 holds their
CRC-32 and a set bit 32; they are written once. Words 9 to 12 count its calls by mode. When the
first 14,464 rows are taken, further shapes fold into the remaining 1,536, one per (op, workspace,
power of two of the batch): such a row keeps the sums of batches in words 13 and 14, and its shape
is the worst that was folded into it.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

MAGIC = int.from_bytes(b"WS_GUARD", "little")
VERSION = 1

HEADER_BYTES = 4096
DOCUMENT_BYTES = 16_384
RING_RUNS = 1024
ROW_BYTES = 128
ROW_WORDS = ROW_BYTES // 8
EXACT_ROWS = 14_464
FOLD_ROWS = 1_536

DOCUMENT_OFFSET = HEADER_BYTES
RING_OFFSET = DOCUMENT_OFFSET + 2 * DOCUMENT_BYTES
ROWS_OFFSET = RING_OFFSET + 8 * RING_RUNS
SLOT_BYTES = ROWS_OFFSET + ROW_BYTES * (EXACT_ROWS + FOLD_ROWS)

#: No version's slot is larger; readers look into no larger file.
MAX_BYTES = 2 << 20

#: Words of a row that count calls, by mode; then the batch sums of a folded row.
COUNT_EAGER, COUNT_CAPTURED, COUNT_REPLAYED, COUNT_TUNING = 9, 10, 11, 12
SUM_EAGER, SUM_REPLAYED = 13, 14

MAX_OPS = 8
OVERFLOW, OVERRUN = 0, 1
ACTIONS = ("observed", "raised", "split")
MAX_WORKSPACES = 8

NONE = (1 << 64) - 1
UINT8, UINT16, UINT32, UINT64 = (1 << 8) - 1, (1 << 16) - 1, (1 << 32) - 1, NONE


#: A lane for each op, and the last one for replays.
LANES = MAX_OPS + 1
REPLAYS = MAX_OPS


class Header(IntEnum):
    """Header words. `EVENTS` begins a table of [op][overflow, overrun][action] counters.

    `LAST_RUN` and `LAST_CALL` begin tables by lane: the word of its current run as it stands in the
    ring, and when its last call was. That and `ATTACHED_CLOCK` are seconds of the monotonic clock
    as float64, which is stored faster than a large int; ring words hold the same clock.
    """

    MAGIC = 0
    VERSION = 1
    SLOT_BYTES = 2
    PID = 3
    PID_START_TICKS = 4
    PID_NAMESPACE = 5
    ATTACHED_NS = 6
    CLOSED_NS = 7
    EXACT_ROWS = 8
    FOLD_ROWS = 9
    DOCUMENT = 10
    PROBE_ERRORS = 11
    LAST_OVERFLOW_NS = 12
    LAST_OVERRUN_NS = 13
    ATTACHED_CLOCK = 14
    EVENTS = 16
    LAST_RUN = 64
    LAST_CALL = 80


def event_word(op: int, kind: int, action: int) -> int:
    """Header word that counts overflows or overruns of an op by action."""
    return Header.EVENTS + (op * 2 + kind) * len(ACTIONS) + action


class Outcome(IntEnum):
    """How a call in the ring went. 0 marks a ring word that was never written."""

    EAGER = 1
    CAPTURED = 2
    TUNING = 3
    OVERFLOW = 4
    OVERRUN = 5
    RAISED = 6
    SPLIT = 7
    REPLAYED = 8


#: Outcomes of calls that went wrong: each is a run of its own.
EVENTS = frozenset({Outcome.OVERFLOW, Outcome.OVERRUN, Outcome.RAISED, Outcome.SPLIT})

#: Bits of a clock that a ring word leaves out: its ticks are 1,024 ns.
TICK_BITS = 10
_ROW_BITS = 14
OUTCOME_BITS = 4
#: Bits of a ring word below its time: row and outcome.
CODE_BITS = _ROW_BITS + OUTCOME_BITS


def pack_run(clock_ns: int, row: int, outcome: Outcome) -> int:
    """One ring word: 46 bits for the monotonic clock at its first call, in 1,024 ns, 14 for the
    row, 4 for the outcome."""
    return (clock_ns >> TICK_BITS << _ROW_BITS | row) << OUTCOME_BITS | outcome


def unpack_run(word: int) -> tuple[int, int, int]:
    """(clock_ns, row, outcome) of a ring word."""
    outcome = word & ((1 << OUTCOME_BITS) - 1)
    row = word >> OUTCOME_BITS & ((1 << _ROW_BITS) - 1)
    return word >> CODE_BITS << TICK_BITS, row, outcome


class Shape(NamedTuple):
    """What decides a call's slabs, and when it was first seen. Sizes in bytes.

    `op` and `workspace` are positions in the document's lists `ops` and `workspaces`; a
    workspace beyond them is `other`. `sum_q` and `counter_buffer_bytes` are None where they do not
    matter; `qk`, `vo`, `top_k` are the head dims (0: unknown). `kv_heads` (0: unknown) and
    `sm90_fp8`, the FP8 kernel of Hopper, matter to XQA.
    """

    op: int
    workspace: int
    batch: int
    heads: int
    q_len: int
    lse: bool
    workspace_bytes: int
    address_mod_16: int
    sm_count: int
    qk: int
    vo: int
    top_k: int
    sum_q: int | None
    counter_buffer_bytes: int | None
    first_seen_ns: int
    kv_heads: int = 0
    sm90_fp8: bool = False


_SHAPE = struct.Struct("<BBBBHHIIIHHQQQQH6x")
SHAPE_BYTES = _SHAPE.size
_LSE, _SM90_FP8 = 1, 2


def pack_shape(shape: Shape) -> bytes:
    """Words 1 to 8 of a row. Numbers beyond a field's range stay at its nearest value."""
    return _SHAPE.pack(
        _fit(shape.op, UINT8),
        _LSE * shape.lse | _SM90_FP8 * shape.sm90_fp8,
        _fit(shape.workspace, UINT8),
        _fit(shape.address_mod_16, UINT8),
        _fit(shape.sm_count, UINT16),
        _fit(shape.top_k, UINT16),
        _fit(shape.batch, UINT32),
        _fit(shape.heads, UINT32),
        _fit(shape.q_len, UINT32),
        _fit(shape.qk, UINT16),
        _fit(shape.vo, UINT16),
        _fit(shape.workspace_bytes, UINT64),
        _optional(shape.sum_q),
        _optional(shape.counter_buffer_bytes),
        _fit(shape.first_seen_ns, UINT64),
        _fit(shape.kv_heads, UINT16),
    )


def _fit(value: int, largest: int) -> int:
    return max(0, min(value, largest))


def _optional(value: int | None) -> int:
    return NONE if value is None else _fit(value, NONE - 1)


def unpack_shape(data: bytes) -> Shape:
    """The shape in words 1 to 8 of a row."""
    (op, flags, workspace, address, sm_count, top_k, batch, heads, q_len, qk, vo, size, sum_q,
     counter, first_seen, kv_heads) = _SHAPE.unpack(data)  # fmt: skip
    return Shape(
        op=op,
        workspace=workspace,
        batch=batch,
        heads=heads,
        q_len=q_len,
        lse=bool(flags & _LSE),
        workspace_bytes=size,
        address_mod_16=address,
        sm_count=sm_count,
        qk=qk,
        vo=vo,
        top_k=top_k,
        sum_q=None if sum_q == NONE else sum_q,
        counter_buffer_bytes=None if counter == NONE else counter,
        first_seen_ns=first_seen,
        kv_heads=kv_heads,
        sm90_fp8=bool(flags & _SM90_FP8),
    )


def seal(data: bytes) -> int:
    """Word 0 of a row whose words 1 to 8 are `data`; never 0, which marks a free row."""
    return 1 << 32 | zlib.crc32(data)


def fold_class(batch: int) -> int:
    """The power of two that a batch folds into: k for 2^(k-1) < batch <= 2^k, 0 up to 1."""
    return max(0, batch - 1).bit_length()
