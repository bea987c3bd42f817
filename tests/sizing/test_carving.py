"""carve against 380 answers of the real launchers (golden), and the public function's own rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ws_guard
from ws_guard.sizing import LAYOUTS, Call, HeadDims, need

GOLDEN = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "launcher_carve.jsonl")
    .read_text()
    .splitlines()
]


def test_the_golden_file_is_whole() -> None:
    assert len(GOLDEN) == 380


@pytest.mark.parametrize("query", GOLDEN, ids=lambda q: f"{q['flashinfer']}-{q['entry']}")
def test_carve_is_what_the_real_launcher_did(query: dict[str, Any]) -> None:
    arguments = {k: v for k, v in query.items() if k not in ("result", "workspace_address_mod_16")}
    answer = ws_guard.carve(**arguments, workspace_address=query["workspace_address_mod_16"])
    expected = query["result"]
    assert answer.ok == expected["ok"]
    if answer.ok:
        assert answer.offsets == expected["offsets"]
    else:
        assert answer.refused is not None
        for name in ("slab", "size", "alignment", "available"):
            assert getattr(answer.refused, name) == expected.get(name)


def carve(**changes: Any) -> ws_guard.Carve:
    """The reported deployment's call: 64 heads, LSE, 394 MiB, FlashInfer 0.6.14."""
    arguments: dict[str, Any] = {
        "entry": "decode",
        "num_qo_heads": 64,
        "batch_size": 3081,
        "max_q_len": 1,
        "workspace_bytes": 413_138_944,
        "lse": True,
        "sm_count": 148,
        "flashinfer": "0.6.14",
    }
    return ws_guard.carve(**{**arguments, **changes})


def test_the_documented_answer() -> None:
    assert repr(carve()) == (
        "Carve(ok=False, offsets={}, refused=Refusal(slab='trtllm_gen_softmax_workspace', "
        "size=404881408, alignment=16, available=404750336), scratch_available=None)"
    )


@pytest.mark.parametrize(
    ("release", "batch", "left"),
    [
        ("0.6.14", 3080, 0),
        ("0.6.15.post1", 3080, 8_388_608),
        ("0.6.15.post1", 3081, 8_257_536),
        ("0.6.15.post1", 3144, 0),
    ],
)
def test_what_is_left_for_scratch(release: str, batch: int, left: int) -> None:
    # Asked of the real launchers: 64 heads, q 1, workspace 413,138,944, LSE, 148 SMs
    answer = carve(flashinfer=release, batch_size=batch)
    assert (answer.ok, answer.scratch_available) == (True, left)


def test_nothing_is_left_for_a_scratch_that_nobody_is_given() -> None:
    answer = carve(entry="context", batch_size=8, flashinfer="0.7.4")
    assert answer == (True, {"softmax_stats": 0}, None, None)


def test_one_byte_short_is_refused_with_the_remainder_before_padding() -> None:
    # 8 * 64 * 74 * 256 + 1 MiB = 10,747,904; at address 8 the first 8 bytes are padding
    fits = carve(flashinfer="0.7.4", batch_size=74, workspace_bytes=10_747_912, workspace_address=8)
    assert fits.offsets == {"softmax_stats": 8, "scratch": 10_747_912}
    short = carve(
        flashinfer="0.7.4", batch_size=74, workspace_bytes=10_747_911, workspace_address=8
    )
    assert short.refused == ("trtllm_gen_softmax_workspace", 10_747_904, 16, 10_747_911)


def test_a_development_build_on_a_boundary_reports_the_worse_layout() -> None:
    # 3,081 rows fit on C and not on B; 0.6.15.dev1 may be either
    assert not carve(flashinfer="0.6.15.dev1").ok
    assert carve(flashinfer="0.6.15").ok


def test_ragged_of_layout_a_sizes_its_stats_by_the_tokens_of_the_batch() -> None:
    # counter 8,388,608, then 8 * 16 heads * 1,001 tokens = 128,128
    arguments = {"entry": "ragged", "num_qo_heads": 16, "batch_size": 7, "max_q_len": 300}
    answer = carve(**arguments, lse=False, flashinfer="0.6.11.post3", sum_q=1001)
    assert answer.offsets["scratch"] == 8_388_608 + 128_128


def test_external_counter_of_layout_c() -> None:
    # 4 bytes * round_up(max(3,144 * 64, 148), 8) = 804,864
    assert carve(flashinfer="0.7.4", batch_size=3144, counter_buffer_bytes=804_864).ok
    short = carve(flashinfer="0.7.4", batch_size=3144, counter_buffer_bytes=804_863)
    assert short == (False, {}, ("multi_ctas_kv_counter_buffer", None, None, None), None)
    # Few rows: the SM count decides, 4 * round_up(148, 8) = 608
    assert carve(flashinfer="0.7.4", entry="dsv4", batch_size=1, num_qo_heads=8,
                 counter_buffer_bytes=608).ok  # fmt: skip
    assert not carve(flashinfer="0.7.4", entry="dsv4", batch_size=1, num_qo_heads=8,
                     counter_buffer_bytes=607).ok  # fmt: skip


def test_need_counts_padding_slabs_and_scratch() -> None:
    call = Call("decode", 64, 74, lse=True, dims=HeadDims(576, 512, 2048))
    # 10,747,904 of stats + 9,775,104 of scratch (facts); at address 1 fifteen bytes of padding
    assert need(call, LAYOUTS["C"]).total == 20_523_008
    assert need(call, LAYOUTS["C"], address=1).total == 20_523_008 + 15
    assert need(call, LAYOUTS["B"]).total == 20_523_008 + 8_388_608


def test_need_at_an_address_that_is_not_aligned() -> None:
    # 12 bytes of padding before the first slab, whichever it is, and none behind it
    for layout, lse in (("B", True), ("B", False), ("C", True), ("C", False)):
        call = Call("decode", 64, 32, lse=lse, dims=HeadDims(576, 512, 2048))
        aligned = need(call, LAYOUTS[layout])
        assert need(call, LAYOUTS[layout], address=4) == aligned._replace(total=aligned.total + 12)
        # 4 parts of 32 rows of 64 heads: 148 * 64 * 8 + 128 * 64 * 512 * 2, whatever the KV step
        stats = (8 * 64 * 32 * 256 + 2**20) * lse
        counter = 8_388_608 if layout == "B" else 0
        assert aligned == (
            counter + stats + 8_464_384,
            {"counter": counter, "softmax_stats": stats, "scratch": 8_464_384},
        )
    # The same where no scratch follows, whose own padding would make up for it
    call = Call("decode", 64, 100, lse=True)
    assert need(call, LAYOUTS["C"], address=4).total == 12 + 8 * 64 * 100 * 256 + 2**20


def test_what_hands_no_scratch_over_needs_none() -> None:
    # A decode of one row would; a context of layout C carves its statistics and nothing else
    assert need(Call("context", 8, 1, lse=True), LAYOUTS["C"]) == (
        8 * 8 * 256 + 2**20,
        {"counter": 0, "softmax_stats": 8 * 8 * 256 + 2**20, "scratch": 0},
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"entry": "xqa"}, "entry must be one of decode, context, ragged, dsv4"),
        ({"num_qo_heads": 0}, "num_qo_heads must be between 1 and 2,147,483,647, got 0"),
        ({"batch_size": -1}, "batch_size must be between 1"),
        ({"batch_size": 1.5}, "batch_size must be a whole number, got 1.5"),
        ({"batch_size": True}, "batch_size must be a whole number, got True"),
        ({"max_q_len": 0}, "max_q_len must be between 1"),
        ({"workspace_bytes": -1}, "workspace_bytes must be between 0"),
        ({"workspace_address": -16}, "workspace_address must be between 0"),
        ({"sm_count": 0}, "sm_count must be between 1 and 1,024"),
        ({"sum_q": -1}, "sum_q must be between 0"),
        ({"counter_buffer_bytes": -1}, "counter_buffer_bytes must be between 0"),
        ({"flashinfer": "0.2.9"}, "0.2.9 is older than 0.3.0"),
        ({"flashinfer": "newest"}, "flashinfer must be a release such as"),
        ({"batch_size": 2**31}, "batch_size must be between 1 and 2,147,483,647"),
        ({"num_qo_heads": 2**31}, "num_qo_heads must be between 1 and 2,147,483,647"),
        ({"max_q_len": 2**31}, "max_q_len must be between 1 and 2,147,483,647"),
        ({"sum_q": 2**31}, "sum_q must be between 0 and 2,147,483,647"),
        ({"sm_count": 1025}, "sm_count must be between 1 and 1,024, got 1,025"),
        ({"workspace_bytes": 1 << 63}, "workspace_bytes must be between 0 and 9,223,372,036,854"),
        ({"workspace_bytes": -(1 << 127)}, "workspace_bytes .*, got -170,141,183,460,469"),
        ({"workspace_bytes": 1 << 128}, "workspace_bytes .*, got a number far beyond$"),
        # 8 * 2**16 heads * 2**20 rows are 2**39: 2**24 tokens more are 2**63
        (
            {"num_qo_heads": 2**16, "batch_size": 2**20, "max_q_len": 2**24 - 255},
            "num_qo_heads 65,536 x batch_size 1,048,576 x max_q_len 16,776,961 is more",
        ),
    ],
)
def test_impossible_inputs_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ws_guard.InputError, match=f"^(flashinfer )?{words}"):
        carve(**changes)


LARGEST = 2**31 - 1


@pytest.mark.parametrize(
    "call",
    [
        Call("decode", LARGEST, 1, kv_heads=LARGEST),
        Call("context", 1, LARGEST, sm_count=1, sum_q=0),
        Call("ragged", 1, 1, LARGEST, sm_count=1024, sum_q=LARGEST),
        Call("dsv4", 1, 1, counter_buffer_bytes=0, kv_heads=1),
        Call("xqa", 2**16, 2**20, 2**24 - 256, max_kv_len=LARGEST),
        Call("xqa_mla", 1, 1, max_kv_len=0),
    ],
    ids=lambda call: call.entry,
)
def test_calls_at_their_limits_are_calls(call: Call) -> None:
    assert call.checked() is call


def test_more_than_any_address_space_holds() -> None:
    with pytest.raises(ws_guard.InputError) as refused:
        Call("decode", LARGEST, LARGEST).checked()
    assert str(refused.value) == (
        "num_qo_heads 2,147,483,647 x batch_size 2,147,483,647 x max_q_len 1 is more than any "
        "address space holds; pass real sizes"
    )


def test_an_entry_that_no_launcher_has() -> None:
    known = "decode, context, ragged, dsv4, xqa, xqa_mla"
    with pytest.raises(ws_guard.InputError, match=f"^entry must be one of {known}, got 'prefill'$"):
        Call("prefill", 1, 1).checked()


def test_exact_at_any_size() -> None:
    # 8 * 65,536 heads * 1,000,000 rows * 256 + 1 MiB, far beyond 32 bits
    answer = carve(num_qo_heads=65_536, batch_size=1_000_000)
    assert answer.refused is not None
    assert answer.refused.size == 134_217_728_000_000 + 1_048_576
