"""Hostile slots: a real one, changed in ways that get past its checksums or not."""

from __future__ import annotations

import json
import zlib
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

from ws_guard.board.format import (
    COUNT_EAGER,
    DOCUMENT_BYTES,
    DOCUMENT_OFFSET,
    EXACT_ROWS,
    HEADER_BYTES,
    NONE,
    RING_OFFSET,
    RING_RUNS,
    ROW_BYTES,
    ROWS_OFFSET,
    SLOT_BYTES,
    UINT8,
    UINT16,
    UINT32,
    Header,
    Shape,
    pack_shape,
    seal,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    #: Where, and what stands there now.
    Patch: TypeAlias = tuple[int, bytes]
    Mutation: TypeAlias = Callable[[Random, dict[str, Any]], list[Patch]]

EDGES = (
    0,
    1,
    2,
    127,
    255,
    256,
    65_535,
    65_536,
    (1 << 31) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    NONE,
)
#: As a float64 these words are infinite, no number, and huge.
CLOCKS = (0x7FF0 << 48, 0x7FF8 << 48, 0xFFF0 << 48, 0x7FEF << 48 | (1 << 48) - 1)
#: Rows that a mutation writes to, and that a slot may claim to have.
ROWS = 8
TEXTS = (
    "",
    "x" * 300,
    "\0",
    "\x1b[31m",
    "\u202e",
    '"}\n',
    "<script>",
    "/etc/passwd",
    "0",
    "ws0",
    "é" * 99,
)
LEAVES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 10**30, -(10**30), [], {}, [[]], [{}], {"a": {}}, *TEXTS,
)  # fmt: skip


def word(value: int) -> bytes:
    """A word as it stands in a slot."""
    return (value & NONE).to_bytes(8, "little")


def any_word(random: Random) -> int:
    """A word at an edge, near one, or anywhere."""
    edge = random.choice(EDGES)
    return random.choice((edge, edge - 1, edge + 1, random.getrandbits(64), *CLOCKS)) & NONE


def header_word(random: Random, _: dict[str, Any]) -> list[Patch]:
    """A header word, seldom one of those without which nothing is read."""
    least = Header.MAGIC if random.random() < 0.05 else Header.PID
    return [(8 * random.randrange(least, Header.LAST_CALL + 9), word(any_word(random)))]


def bytes_anywhere(random: Random, _: dict[str, Any]) -> list[Patch]:
    """A few bytes of header, documents, ring or the first rows."""
    last = ROWS_OFFSET + ROWS * ROW_BYTES
    start = random.choice((random.randrange(last), random.randrange(HEADER_BYTES)))
    return [(start, random.randbytes(random.choice((1, 1, 2, 8, 64))))]


def sealed_row(random: Random, _: dict[str, Any]) -> list[Patch]:
    """A shape that no call has, with the right checksum and any counts."""

    def number(most: int) -> int:
        return random.choice((0, 1, 64, most, most - 1, random.randint(0, most)))

    shape = Shape(
        op=number(UINT8),
        workspace=number(UINT8),
        batch=number(UINT32),
        heads=number(UINT32),
        q_len=number(UINT32),
        lse=random.random() < 0.5,
        workspace_bytes=number(NONE),
        address_mod_16=number(UINT8),
        sm_count=number(UINT16),
        qk=number(UINT16),
        vo=number(UINT16),
        top_k=number(UINT16),
        sum_q=random.choice((None, number(NONE - 1))),
        counter_buffer_bytes=random.choice((None, number(NONE - 1))),
        first_seen_ns=number(NONE),
        kv_heads=number(UINT16),
        sm90_fp8=random.random() < 0.5,
    )
    if random.random() < 0.5:  # most of it as in a real call, so that sizing gets far
        shape = shape._replace(op=random.randrange(3), workspace=0, sm_count=148, heads=64, qk=576)
    packed = pack_shape(shape)
    counts = b"".join(word(any_word(random)) for _ in range(6))
    row = random.choice((random.randrange(ROWS), EXACT_ROWS))
    place = ROWS_OFFSET + row * ROW_BYTES
    return [(place, word(seal(packed)) + packed), (place + 8 * COUNT_EAGER, counts)]


def ring_word(random: Random, _: dict[str, Any]) -> list[Patch]:
    """A run of any time and outcome, mostly of a row that is there."""
    run = any_word(random)
    if random.random() < 0.8:
        run = run & ~(0x3FFF << 4) | random.randrange(ROWS) << 4
    return [(RING_OFFSET + 8 * random.randrange(RING_RUNS), word(run))]


def document(random: Random, real: dict[str, Any]) -> list[Patch]:
    """A document with a value put somewhere, under the right checksum."""
    told = json.loads(json.dumps(real))
    for _ in range(random.choice((1, 1, 2, 5))):
        place: Any = told
        while isinstance(place, (dict, list)) and place:
            key = random.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inside = place[key]
            if not isinstance(inside, (dict, list)) or not inside or random.random() < 0.3:
                place[key] = deepcopy(random.choice(LEAVES))
                break
            place = inside
    text = json.dumps(told).encode()[: DOCUMENT_BYTES - 16]
    if random.random() < 0.05:
        cut = random.randrange(len(text))
        text = text[:cut] + random.randbytes(3) + text[cut + 3 :]
    stored = word(len(text)) + word(zlib.crc32(text)) + text
    generation = random.randrange(2, 1 << 20)
    place = DOCUMENT_OFFSET + (generation & 1) * DOCUMENT_BYTES
    return [(place, stored), (8 * Header.DOCUMENT, word(generation))]


MUTATIONS: tuple[Mutation, ...] = (
    header_word, bytes_anywhere, sealed_row, sealed_row, ring_word, ring_word, document, document,
)  # fmt: skip


def mutate(random: Random, real: dict[str, Any]) -> tuple[list[Patch], int]:
    """What is written over a real slot with this document, and how long it is then."""
    patches: list[Patch] = []
    for _ in range(random.choice((1, 1, 2, 3, 5))):
        patches += random.choice(MUTATIONS)(random, real)
    if random.random() < 0.5:
        # So that rows and lanes that mutations wrote are looked at.
        patches.append((8 * Header.EXACT_ROWS, word(ROWS) + word(1)))
    return patches, random.randrange(SLOT_BYTES) if random.random() < 0.01 else SLOT_BYTES
