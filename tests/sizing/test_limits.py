"""Threshold, overrun range and worst need, each against figures of the real launchers."""

from __future__ import annotations

import pytest

from ws_guard.sizing import (
    LAYOUTS,
    Call,
    HeadDims,
    carve,
    overflow_threshold_batch,
    overrun_batches,
    overruns,
    worst_need_bytes,
)

MIB = 1 << 20
SPARSE_MLA = HeadDims(576, 512, top_k=2048)


def call(heads: int = 64, batch: int = 1, **changes: object) -> Call:
    return Call("decode", heads, batch, lse=True)._replace(**changes)


@pytest.mark.parametrize(
    ("layout", "heads", "workspace", "threshold"),
    [
        ("B", 64, 394 * MIB, 3080),
        ("C", 64, 394 * MIB, 3144),
        ("B", 128, 394 * MIB, 1540),
        ("C", 128, 394 * MIB, 1572),
        ("B", 128, 256 * MIB, 988),
        ("C", 128, 256 * MIB, 1020),
    ],
)
def test_threshold(layout: str, heads: int, workspace: int, threshold: int) -> None:
    assert overflow_threshold_batch(call(heads), LAYOUTS[layout], workspace) == threshold


@pytest.mark.parametrize(
    ("heads", "q_len", "b", "c"), [(128, 8192, 48, 49), (16, 16_384, 192, 196)]
)
def test_threshold_of_ragged_with_lse(heads: int, q_len: int, b: int, c: int) -> None:
    ragged = call(heads, entry="ragged", q_len=q_len)
    assert overflow_threshold_batch(ragged, LAYOUTS["B"], 394 * MIB) == b
    assert overflow_threshold_batch(ragged, LAYOUTS["C"], 394 * MIB) == c


def test_threshold_where_nothing_grows_and_where_nothing_fits() -> None:
    assert overflow_threshold_batch(call(lse=False), LAYOUTS["C"], 1) is None
    assert overflow_threshold_batch(call(lse=False), LAYOUTS["B"], 8_388_607) == 0
    # One row asks 8 * 64 * 256 + 1 MiB = 1,179,648
    assert overflow_threshold_batch(call(), LAYOUTS["C"], 1_179_647) == 0
    assert overflow_threshold_batch(call(), LAYOUTS["C"], 1_179_648) == 1


def test_threshold_counts_the_external_counter() -> None:
    # 4 * round_up(batch * 64, 8) <= 25,600 holds up to batch 100
    limited = call(counter_buffer_bytes=25_600)
    assert overflow_threshold_batch(limited, LAYOUTS["C"], 394 * MIB) == 100


def test_threshold_of_a_misaligned_workspace() -> None:
    # Exactly 3,144 rows fit at an aligned address; padding takes the last one
    assert overflow_threshold_batch(call(), LAYOUTS["C"], 394 * MIB, address=8) == 3143


@pytest.mark.parametrize(
    ("workspace", "batch", "left", "used"),
    [
        (8 * MIB, 32, 3_145_728, 8_464_384),
        (12 * MIB, 74, 1_835_008, 9_775_104),
        (10_747_904, 74, 0, 9_775_104),
    ],
)
def test_silent_overruns(workspace: int, batch: int, left: int, used: int) -> None:
    sparse = call(64, batch, dims=SPARSE_MLA)
    assert carve(sparse, LAYOUTS["C"], workspace).scratch_available == left < used
    assert overruns(sparse, LAYOUTS["C"], workspace)
    stats = 8 * 64 * batch * 256 + MIB
    assert not overruns(sparse, LAYOUTS["C"], stats + used)


def test_an_exact_fit_of_many_rows_is_harmless() -> None:
    # 0 bytes are left at 3,080 rows, and none are used
    assert not overruns(call(64, 3080, dims=SPARSE_MLA), LAYOUTS["B"], 394 * MIB)


def test_overrun_range() -> None:
    # 12 MiB, bound 9,850,880: 8*64*b*256 + 1 MiB + bound <= 12,582,912 holds up to b = 12
    assert 131_072 * 12 + MIB + 9_850_880 <= 12 * MIB < 131_072 * 13 + MIB + 9_850_880
    assert overrun_batches(call(64, 16_384), LAYOUTS["C"], 12 * MIB) == (13, 74)
    assert overrun_batches(call(64, 40), LAYOUTS["C"], 12 * MIB) == (13, 40)
    assert overrun_batches(call(64, 12), LAYOUTS["C"], 12 * MIB) is None
    assert overrun_batches(call(64, 16_384), LAYOUTS["C"], 394 * MIB) is None


def test_need_is_not_monotone_at_the_low_end() -> None:
    sparse = call(64, 148, dims=SPARSE_MLA)
    # stats and scratch together peak at batch 74; from 149 on the slab alone is larger
    assert worst_need_bytes(sparse, LAYOUTS["C"]) == 20_523_008
    assert worst_need_bytes(sparse._replace(batch=149), LAYOUTS["C"]) == 8 * 64 * 149 * 256 + MIB


def test_an_address_that_is_not_aligned_takes_its_padding_from_the_scratch() -> None:
    # 74 rows need 10,747,904 of statistics and 9,775,104 of scratch; no smaller step as much
    sparse, size = call(64, 74, dims=SPARSE_MLA), 20_523_008
    assert overrun_batches(sparse, LAYOUTS["C"], size) is None
    assert overrun_batches(sparse, LAYOUTS["C"], size, address=8) == (74, 74)
    assert not overruns(sparse, LAYOUTS["C"], size)
    assert overruns(sparse, LAYOUTS["C"], size, address=8)
    assert worst_need_bytes(sparse, LAYOUTS["C"], address=8) == size + 8


def test_the_worst_need_is_that_of_a_step_up_to_the_planned_one() -> None:
    # 12 rows: 8 parts each, 96 * 64 * 512 * 2, and statistics 148 * 64 * 8; not 13 rows
    twelve = 8 * 64 * 12 * 256 + MIB + 96 * 65_536 + 75_776
    assert worst_need_bytes(call(64, 12, dims=SPARSE_MLA), LAYOUTS["C"]) == twelve
    # 66 KV heads: one row leaves 2 CTAs to each, 2 rows one. 132 parts of 256 and of 256 bytes
    xqa = Call("xqa", 66, 2, sm_count=132, dims=HeadDims(128, 128), kv_heads=66, max_kv_len=512)
    assert worst_need_bytes(xqa._replace(sm90_fp8=False), LAYOUTS["C"]) == 8 * MIB + 2 * 132 * 256


def test_threshold_at_the_end_of_what_a_batch_can_be() -> None:
    # 4 bytes for each of 2**31 - 1 rows of one head, rounded up to 8 words: 2**33 bytes
    largest = 2**31 - 1
    enough = call(1, lse=False, counter_buffer_bytes=2**33)
    assert overflow_threshold_batch(enough, LAYOUTS["C"], 394 * MIB) is None
    # 8 words less: the last 7 rows do not fit
    less = enough._replace(counter_buffer_bytes=2**33 - 32)
    assert overflow_threshold_batch(less, LAYOUTS["C"], 394 * MIB) == largest - 7
    # Layout A, ragged: the counter, 8 bytes for each row of one head, and to the next 16
    ragged, rows = Call("ragged", 1, 1), 8_388_608 + 8 * largest
    assert overflow_threshold_batch(ragged, LAYOUTS["A"], rows + 8) is None
    assert overflow_threshold_batch(ragged, LAYOUTS["A"], rows) == largest - 1
