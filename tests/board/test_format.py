"""The slot's bytes: what is documented, what survives a round trip, what stays at a limit."""

from __future__ import annotations

import re

import pytest
from board_worker import make_shape
from hypothesis import given
from hypothesis import strategies as st

from ws_guard.board import ACTIONS, OVERFLOW, OVERRUN, Outcome, Shape
from ws_guard.board import format as slot_format
from ws_guard.board.format import (
    DOCUMENT_BYTES,
    DOCUMENT_OFFSET,
    EXACT_ROWS,
    FOLD_ROWS,
    HEADER_BYTES,
    LANES,
    MAGIC,
    MAX_BYTES,
    MAX_OPS,
    RING_OFFSET,
    RING_RUNS,
    ROW_BYTES,
    ROWS_OFFSET,
    SHAPE_BYTES,
    SLOT_BYTES,
    Header,
    event_word,
    fold_class,
    pack_run,
    pack_shape,
    seal,
    unpack_run,
    unpack_shape,
)

#: The largest value of every number in a row, by its documented width.
LARGEST = {
    **dict.fromkeys(("op", "workspace", "address_mod_16"), 255),
    **dict.fromkeys(("sm_count", "top_k", "qk", "vo", "kv_heads"), 65_535),
    **dict.fromkeys(("batch", "heads", "q_len"), 4_294_967_295),
    **dict.fromkeys(("workspace_bytes", "first_seen_ns"), 18_446_744_073_709_551_615),
    # All ones stand for None.
    **dict.fromkeys(("sum_q", "counter_buffer_bytes"), 18_446_744_073_709_551_614),
}


def repacked(shape: Shape) -> Shape:
    return unpack_shape(pack_shape(shape))


@pytest.mark.parametrize("field", LARGEST)
@pytest.mark.parametrize("lse", [True, False])
def test_limits_of_a_field_survive_and_touch_no_other(field: str, lse: bool) -> None:
    for value in (0, 1, LARGEST[field]):
        shape = make_shape(lse=lse, **{field: value})
        assert repacked(shape) == shape


@pytest.mark.parametrize("field", LARGEST)
def test_a_number_beyond_its_field_stays_at_the_limit(field: str) -> None:
    assert getattr(repacked(make_shape(**{field: LARGEST[field] + 1})), field) == LARGEST[field]
    assert getattr(repacked(make_shape(**{field: 1 << 200})), field) == LARGEST[field]
    assert getattr(repacked(make_shape(**{field: -1})), field) == 0


@pytest.mark.parametrize("field", ["sum_q", "counter_buffer_bytes"])
def test_what_does_not_matter_is_told_from_zero(field: str) -> None:
    assert getattr(repacked(make_shape(**{field: None})), field) is None
    assert getattr(repacked(make_shape(**{field: 0})), field) == 0


numbers = {name: st.integers(0, largest) for name, largest in LARGEST.items()}
optional = {name: st.none() | numbers[name] for name in ("sum_q", "counter_buffer_bytes")}


@given(st.builds(Shape, **{**numbers, **optional, "lse": st.booleans(), "sm90_fp8": st.booleans()}))
def test_every_shape_survives(shape: Shape) -> None:
    assert repacked(shape) == shape


def test_fields_are_those_of_a_shape() -> None:
    assert set(LARGEST) | {"lse", "sm90_fp8"} == set(Shape._fields)


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("row", [0, 1, EXACT_ROWS + FOLD_ROWS - 1])
# 46 bits of 1,024 ns, 834 days.
@pytest.mark.parametrize("ticks", [0, 1, (1 << 46) - 1])
def test_limits_of_a_ring_word_survive(ticks: int, row: int, outcome: Outcome) -> None:
    word = pack_run(ticks * 1024, row, outcome)
    assert 0 < word < 1 << 64
    assert unpack_run(word) == (ticks * 1024, row, outcome)


def test_time_in_a_ring_word_is_cut_to_1024_ns() -> None:
    assert unpack_run(pack_run(5 * 1024 + 1023, 7, Outcome.EAGER))[0] == 5 * 1024


def test_documented_places_are_the_real_ones() -> None:
    table = re.findall(r"^    ([\d,]+) +(?:(\d+) x )?([\d,]+)(?: x (\d+))?  ", DOC, re.MULTILINE)
    places = [[int(n.replace(",", "") or 1) for n in found] for found in table]
    assert places == [
        [0, 1, HEADER_BYTES, 1],
        [DOCUMENT_OFFSET, 2, DOCUMENT_BYTES, 1],
        [RING_OFFSET, 1, 8 * RING_RUNS, 1],
        [ROWS_OFFSET, 1, EXACT_ROWS + FOLD_ROWS, ROW_BYTES],
    ]
    # Each begins where the one before it ends.
    assert DOCUMENT_OFFSET == HEADER_BYTES == 4_096
    assert RING_OFFSET == 4_096 + 2 * 16_384
    assert ROWS_OFFSET == 36_864 + 8_192


DOC = slot_format.__doc__ or ""


@pytest.mark.parametrize(
    ("words", "constant"),
    [
        (r"last ([\d,]+) runs of calls, one word each", RING_RUNS),
        (r"first ([\d,]+) rows are taken", EXACT_ROWS),
        (r"remaining ([\d,]+), one per", FOLD_ROWS),
        (r"format version (\d)", slot_format.VERSION),
    ],
)
def test_documented_numbers_are_the_real_ones(words: str, constant: int) -> None:
    found = re.search(words, DOC)
    assert found is not None
    assert int(found[1].replace(",", "")) == constant


def test_documented_words_of_a_row_are_the_real_ones() -> None:
    assert "Words 1 to 8 say the shape" in DOC
    assert SHAPE_BYTES == 8 * 8
    assert "Words 9 to 12 count its calls by mode" in DOC
    modes = ("EAGER", "CAPTURED", "REPLAYED", "TUNING")
    assert [getattr(slot_format, f"COUNT_{mode}") for mode in modes] == [9, 10, 11, 12]
    assert "sums of batches in words 13 and 14" in DOC
    assert (slot_format.SUM_EAGER, slot_format.SUM_REPLAYED) == (13, 14)
    assert ROW_BYTES == 16 * 8


def test_a_slot_is_at_most_2_mib() -> None:
    assert SLOT_BYTES == 45_056 + 16_000 * 128 == 2_093_056
    assert SLOT_BYTES <= MAX_BYTES == 2 * 1024 * 1024


def test_every_row_has_a_number_in_the_ring() -> None:
    assert EXACT_ROWS + FOLD_ROWS <= 1 << 14


def test_a_slot_begins_with_its_name() -> None:
    assert MAGIC.to_bytes(8, "little") == b"WS_GUARD"


def test_event_counters_have_a_header_word_each() -> None:
    words = [
        event_word(op, kind, action)
        for op in range(MAX_OPS)
        for kind in (OVERFLOW, OVERRUN)
        for action in range(len(ACTIONS))
    ]
    assert len(set(words)) == 8 * 2 * 3
    tables = (Header.EVENTS, Header.LAST_RUN, Header.LAST_CALL)
    assert min(words) > max(word for word in Header if word not in tables)
    # Then the tables by lane: eight ops and the replays.
    assert max(words) < Header.LAST_RUN
    assert LANES == 8 + 1
    assert Header.LAST_RUN + LANES <= Header.LAST_CALL
    assert Header.LAST_CALL + LANES <= HEADER_BYTES // 8


def test_a_seal_marks_a_row_as_taken_and_knows_every_bit() -> None:
    data = pack_shape(make_shape())
    assert seal(bytes(SHAPE_BYTES)) >> 32 == 1
    for bit in range(8 * SHAPE_BYTES):
        flipped = int.from_bytes(data, "little") ^ 1 << bit
        assert seal(flipped.to_bytes(SHAPE_BYTES, "little")) != seal(data)


@pytest.mark.parametrize(
    ("batch", "power"),
    [
        *[(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)],
        *[(65_535, 16), (65_536, 16), (65_537, 17), (1 << 32, 32), (-1, 0)],
    ],
)
def test_fold_class_is_the_power_of_two_at_or_above(batch: int, power: int) -> None:
    assert fold_class(batch) == power
