"""XQA's scratch: measured figures, and the formula's arithmetic written out."""

from __future__ import annotations

import pytest

from ws_guard.sizing import (
    LAYOUTS,
    Call,
    Carve,
    HeadDims,
    InputError,
    carve,
    last_batch_with_scratch,
    may_use_scratch,
    need,
    overflow_threshold_batch,
    overrun_batches,
    overruns,
    scratch,
    worst_need_bytes,
)

MIB = 1 << 20
B, C = LAYOUTS["B"], LAYOUTS["C"]
HEAD_128 = HeadDims(128, 128)

# 64/8 heads, head dim 128, a page table of 513 pages of 64 tokens, on an H200
H200 = Call(
    "xqa", 64, 1, sm_count=132, dims=HEAD_128, kv_heads=8, max_kv_len=32_832, sm90_fp8=False
)
MLA = Call("xqa_mla", 128, 1, sm_count=188, dims=HeadDims(576, 512))


@pytest.mark.parametrize(
    ("batch", "pages", "size"),
    # Measured on an H200 with FlashInfer 0.6.15.post1 by painting: the last byte written
    [(1, 513, 294_912), (1, 33, 165_888), (16, 129, 0), (64, 65, 0), (256, 33, 0)],
)
def test_measured(batch: int, pages: int, size: int) -> None:
    assert scratch(H200._replace(batch=batch, max_kv_len=64 * pages), C) == (size, True)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        # split 132 // 8 = 16, 128 parts: statistics 128 * 256 = 32,768, output 128 * 8 * 128 * 2
        ({}, 32_768 + 262_144),
        # 256 tokens are one tile: one CTA; 257 are two
        ({"max_kv_len": 256}, 0),
        ({"max_kv_len": 257}, 16 * 256 + 16 * 2048),
        # 132 // (66 * 1) = 2 CTAs a sequence, 132 parts of 64 rows: 132 * 512 -> 5 * 16,384
        ({"kv_heads": 1, "batch": 66}, 81_920 + 132 * 16_384),
        ({"kv_heads": 1, "batch": 67}, 0),
        # Head dim 96 is padded to 128; 5 rows of it are 1,280 bytes: 32,768 -> 26 * 1,280
        ({"heads": 40, "dims": HeadDims(96, 96)}, 33_280 + 128 * 1280),
        # 40 rows, statistics of 2 * 256 bytes: 128 * 512 = 65,536 -> 7 * 10,240
        ({"heads": 40, "kv_heads": 1, "max_kv_len": 32_768}, 71_680 + 128 * 10_240),
        # 5 draft tokens * 8 rows: 2 blocks of 32 rows, 256 parts of 256 and of 32 * 256 bytes
        ({"q_len": 5}, 65_536 + 256 * 8192),
        # The FP8 kernel: 132 * 3 // 8 = 49, a quarter is 12; 96 parts of 8 * 8 and of 2,048 bytes
        ({"sm90_fp8": True}, 6144 + 96 * 2048),
        # 132 * 3 // 66 = 6, a quarter is 1.5, which rounds to 2; 5 / 4 rounds to 1
        ({"sm90_fp8": True, "heads": 8, "kv_heads": 1, "batch": 66}, 10_240 + 132 * 2048),
        ({"sm90_fp8": True, "heads": 8, "kv_heads": 1, "batch": 67}, 0),
        # Head dims are not padded: 5 rows of 96 are 960 bytes; 96 * 40 = 3,840 = 4 * 960
        ({"sm90_fp8": True, "heads": 40, "dims": HeadDims(96, 96)}, 3840 + 96 * 960),
        # 4 draft tokens * 8 heads = 32 rows fit one tile; 12 make 2 tiles of 64 rows, 192 parts
        ({"sm90_fp8": True, "q_len": 4}, 96 * 256 + 96 * 8192),
        ({"sm90_fp8": True, "q_len": 12}, 192 * 512 + 192 * 16_384),
        # One token of 40 rows is one tile however many; 396 // 4 = 99 parts, 31,680 -> 4 * 10,240
        ({"sm90_fp8": True, "heads": 40, "kv_heads": 1}, 40_960 + 99 * 10_240),
        # 2 tokens of 48 rows are 2 tiles of 64, one token in each; 2 * 50 * 2 parts
        (
            {"sm90_fp8": True, "heads": 96, "kv_heads": 2, "q_len": 2},
            114_688 + 200 * 16_384,
        ),
        # Wider than any padded head dim: as it is; 1 row of 576, 32,768 -> 29 * 1,152
        ({"heads": 8, "dims": HeadDims(576, 576)}, 33_408 + 128 * 1152),
        # 33 tiles of 32 rows: 129 * 8,448 = 1,089,792 -> 5 * 270,336
        ({"heads": 1056, "kv_heads": 1}, 1_351_680 + 129 * 270_336),
        # A known call is what it is, even where no such module compiles: 128 rows of 128
        ({"heads": 128, "kv_heads": 1}, 163_840 + 129 * 32_768),
    ],
)
def test_arithmetic(changes: dict[str, object], size: int) -> None:
    """repr: bytes are whole numbers."""
    found = scratch(H200._replace(**changes), C).bytes
    assert repr(found) == repr(size)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        # Head dim 256: tiles of 16 KiB hold 32 rows, so 2 KV heads at least; 66 parts each
        ({"dims": HeadDims(256, 256)}, 49_152 + 132 * 16_384),
        # Draft tokens come in tiles of 32 rows with 1 KV head as well: 4 tiles of 129 parts
        ({"dims": HeadDims(256, 256), "q_len": 2}, 147_456 + 516 * 16_384),
        # 61 heads of 256 are 61 KV heads: one would need 64 rows
        ({"heads": 61, "dims": HeadDims(256, 256)}, 31_232 + 122 * 512),
        # More heads than SMs: 2 KV heads of 128 rows do not compile, 4 of 64 do; 11 parts for each
        # of 3 sequences, 132 * 512 -> 5 * 16,384
        ({"heads": 256, "batch": 3}, 81_920 + 132 * 16_384),
    ],
)
def test_kv_heads_that_are_not_known_are_those_that_compile(
    changes: dict[str, object], size: int
) -> None:
    call = H200._replace(kv_heads=None, **changes)
    assert scratch(call, C) == (size, False)


def test_where_no_module_compiles_nothing_is_written() -> None:
    # 1,024 rows of the smallest head dim: 2 * 64 * 1,024 bytes are more than 16 KiB
    assert scratch(H200._replace(heads=1024, kv_heads=1, dims=None), C) == (0, True)


def test_who_may_use_scratch() -> None:
    def may(call: Call, *batches: int) -> list[bool]:
        return [may_use_scratch(call._replace(batch=batch)) for batch in batches]

    assert may(MLA, 0, 1, 5000) == [False, True, True]
    assert may(H200._replace(kv_heads=1), 0, 1, 66, 67) == [False, True, True, False]
    # Perhaps there is but one KV head
    assert may(H200._replace(kv_heads=None), 66, 67) == [True, False]


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({}, True),
        ({"q_len": 5}, True),
        ({"q_len": 5, "sum_q": 5}, True),
        ({"sum_q": 3}, True),  # of one token each, whatever the sum
        ({"q_len": 5, "batch": 2, "sum_q": 6}, False),  # ragged: somebody writes less
        ({"sm90_fp8": True}, False),  # whose sequences are short writes less
        ({"sm90_fp8": None}, False),
        ({"max_kv_len": None}, False),
        ({"kv_heads": None}, False),
        ({"dims": None}, False),
        ({"max_kv_len": None, "batch": 16}, True),  # none, however long
    ],
)
def test_exact_only_where_the_arguments_decide(changes: dict[str, object], exact: bool) -> None:
    assert scratch(H200._replace(**changes), C).exact is exact


@pytest.mark.parametrize("unknown", ["max_kv_len", "kv_heads", "dims", "sm90_fp8"])
def test_what_is_not_known_is_taken_at_its_worst(unknown: str) -> None:
    for batch in (1, 3, 7, 8, 33, 66):
        for kv_heads in (1, 2, 8, 64):
            for q_len in (1, 2, 9):
                call = H200._replace(batch=batch, kv_heads=kv_heads, q_len=q_len)
                bound = scratch(call._replace(**{unknown: None}), C).bytes
                assert bound >= scratch(call, C).bytes
    assert scratch(H200._replace(max_kv_len=None), C).bytes == 294_912  # 129 tiles are enough


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("sm_count", [84, 132, 148, 188])
def test_no_scratch_above_half_the_sms(fp8: bool, sm_count: int) -> None:
    for kv_heads in (1, 2, 4, 8):
        call = H200._replace(sm_count=sm_count, kv_heads=kv_heads, sm90_fp8=fp8)
        last = sm_count // 2 // kv_heads
        assert scratch(call._replace(batch=last), C).bytes > 0
        assert scratch(call._replace(batch=last + 1), C) == (0, True)
        assert may_use_scratch(call._replace(batch=last))
        assert not may_use_scratch(call._replace(batch=last + 1))


def test_an_empty_step_writes_nothing() -> None:
    assert scratch(H200._replace(batch=0), C) == (0, True)
    assert scratch(MLA._replace(batch=0), C).bytes == 0


@pytest.mark.parametrize("layout", ["A", "B", "C"])
def test_the_layout_does_not_matter(layout: str) -> None:
    found = LAYOUTS[layout]
    assert need(H200, found) == (
        8_388_608 + 294_912,
        {"counter": 8_388_608, "softmax_stats": 0, "scratch": 294_912},
    )
    # Python slices: nothing is padded, whatever the address
    assert need(H200, found, address=4).total == 8_388_608 + 294_912
    sliced = Carve(True, {"counter": 0, "scratch": 8_388_608}, None, 4096)
    assert carve(H200._replace(lse=True), found, 8 * MIB + 4096, address=4) == sliced
    assert overflow_threshold_batch(H200, found, 0) is None


def test_a_workspace_that_ends_within_the_semaphores_leaves_no_scratch() -> None:
    assert carve(H200, C, 1000) == (True, {"counter": 0, "scratch": 1000}, None, 0)
    assert overruns(H200, C, 1000)
    assert not overruns(H200._replace(batch=64), C, 1000)


def test_the_measured_overrun() -> None:
    # H200: a view of 8 MiB + 4,096 bytes; bytes behind it changed, and no error came
    assert overruns(H200, C, 8 * MIB + 4096)
    assert not overruns(H200, C, 8 * MIB + 294_912)
    assert overruns(H200, C, 8 * MIB + 294_911)
    # 8 rows * 8 KV heads leave 2 CTAs each, 9 rows leave one
    assert overrun_batches(H200._replace(batch=66), C, 8 * MIB + 4096) == (1, 8)
    assert overrun_batches(H200._replace(batch=66), C, 9 * MIB) is None
    assert worst_need_bytes(H200._replace(batch=256), C) == 8 * MIB + 294_912


def test_mla_writes_two_tiles_a_row_at_every_batch() -> None:
    # 2 * 128 rows * (64 bytes + 2 floats) = 18,432
    assert scratch(MLA, C) == (18_432, False)
    assert scratch(MLA._replace(batch=5000), C) == (92_160_000, False)
    # 120 MiB of scratch hold 6,826 rows
    assert 6826 * 18_432 <= 120 * MIB < 6827 * 18_432
    large = MLA._replace(batch=8192)
    assert overrun_batches(large, C, 128 * MIB) == (6827, 8192)
    assert overrun_batches(large._replace(batch=6827), C, 128 * MIB) == (6827, 6827)
    assert overrun_batches(large._replace(batch=6826), C, 128 * MIB) is None
    assert last_batch_with_scratch(large) == 8192
    assert worst_need_bytes(large, C) == 8 * MIB + 8192 * 18_432


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_heads": 65}, "num_kv_heads must be between 1 and 64, got 65"),
        ({"kv_heads": 0}, "num_kv_heads must be between 1 and 64, got 0"),
        ({"max_kv_len": -1}, "max_kv_len must be between 0 and 2,147,483,647, got -1"),
        ({"max_kv_len": 2**31}, "max_kv_len must be between 0 and 2,147,483,647"),
    ],
)
def test_impossible_calls(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        H200._replace(**changes).checked()
