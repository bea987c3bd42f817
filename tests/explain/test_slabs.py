"""The reported crash and its neighbours: how sure the answer is, and on what it rests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from formats import FORMATS, vllm
from messages import CRASH, FLAGS, HEADS, STATS, VLLM, overflow
from solutions import triples

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]

#: The same without the line of allocator.h.
BARE = CRASH[CRASH.index("Buffer") :]


@pytest.mark.parametrize("wrap", FORMATS, ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize(
    "told",
    [
        [FLAGS, HEADS],
        ["vllm serve GLM -tp 8 -dcp=8 --max-num-batched-tokens 16384", HEADS],
        ["vllm serve GLM -tp 8 \\", "  -dcp 8 --max-num-batched-tokens 16384", HEADS],
        ["tp=8 dcp=8 max_num_batched_tokens=16384", "64 heads"],
        [
            (
                "(APIServer pid=1) INFO 07-05 11:59:58 [utils.py:253] non-default args: "
                "{'model': 'G', 'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, "
                "'max_num_batched_tokens': 16384}"
            ),
            HEADS,
        ],
        [
            (
                "Initializing a V1 LLM engine (v0.26.0) with config: tensor_parallel_size=8, "
                "decode_context_parallel_size=8, max_num_batched_tokens=16,384"
            ),
            "num_attention_heads=64",
        ],
    ],
    ids=["long", "short", "continued", "spoken", "banner", "config"],
)
def test_the_reported_crash_is_exact(
    told: list[str], wrap: Callable[[list[str]], bytes], explain_one: ExplainOne
) -> None:
    found = explain_one([*told, CRASH], wrap)
    assert found.confidence == "exact", found.notes
    # 64 / 8 * 8 heads; (1,611,661,312 - 1 MiB) / (8 * 64 * 256) rows; two tokens a row would be
    # 24,576 of the 16,384 that a step has.
    assert triples(found) == {(64, 12_288, 1)}
    assert found.layouts == ("B",)
    assert found.workspace_bytes == (404_750_336 + 8_388_608,)
    # (404,750,336 - 1 MiB) / (8 * 64 * 256) = 3,080.0.
    assert found.overflow_threshold_batch == 3_080
    # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB.
    assert found.recommended_workspace_bytes == 2_561_671_168
    assert found.env == {VLLM: "2561671168"}
    assert any("from 0.30.0 on sizes it itself" in note for note in found.notes)


def test_the_numbers_alone_are_consistent(explain_one: ExplainOne) -> None:
    found = explain_one([BARE])
    assert found.confidence == "consistent"
    assert set(found.layouts) == {"A", "B", "C"}
    # 386 MiB, if nothing was carved before.
    assert found.workspace_bytes == (413_138_944, 404_750_336)
    assert (64, 12_288, 1) in triples(found)
    assert found.overflow_threshold_batch is None
    assert any("not in the log: the model's heads" in note for note in found.notes)
    assert found.env == {}


@pytest.mark.parametrize(("line", "layouts"), [(49, {"A", "B"}), (71, {"C"})], ids=["49", "71"])
def test_the_line_tells_the_layout(line: int, layouts: set[str], explain_one: ExplainOne) -> None:
    found = explain_one([overflow(STATS, 1_611_661_312, 404_750_336, line)])
    assert set(found.layouts) == layouts
    assert found.confidence == "consistent"


def test_a_version_tells_the_layout(explain_one: ExplainOne) -> None:
    found = explain_one(["flashinfer-python==0.6.15.post1", BARE])
    assert (found.layouts, found.workspace_bytes) == (("C",), (404_750_336,))


def test_line_and_version_that_do_not_agree(explain_one: ExplainOne) -> None:
    found = explain_one(["flashinfer-python==0.7.4", CRASH])
    assert set(found.layouts) == {"A", "B"}
    assert any("do not agree" in note for note in found.notes)


def test_two_values_in_a_log_are_not_exact(explain_one: ExplainOne) -> None:
    found = explain_one(["vllm serve A --tensor-parallel-size 4", FLAGS, HEADS, CRASH])
    assert found.confidence == "consistent"
    assert any("several values of tp" in note for note in found.notes)


def test_without_tokens_it_is_not_exact(explain_one: ExplainOne) -> None:
    found = explain_one(["non-default args: {'tensor_parallel_size': 8}", HEADS, CRASH])
    # tp 8 and no DCP: 8 heads, and nobody but the ragged prefill asks for LSE.
    assert found.confidence == "consistent"
    assert {each.num_qo_heads for each in found.solutions} == {8}


def test_traceback_names_the_site(explain_one: ExplainOne) -> None:
    trace = [
        'File "/x/vllm/v1/attention/backends/mla/prefill/trtllm_ragged.py", line 9, in run',
        "out = trtllm_ragged_attention_deepseek(",
    ]
    # 8 * 16 heads * 193 rows * 16,384 tokens + 1 MiB.
    size = 8 * 16 * 193 * 16_384 + 1_048_576
    told = ["vLLM API server version 0.26.0", "non-default args: {'tensor_parallel_size': 8}",
            '"num_attention_heads": 128', "max_num_batched_tokens=16384"]  # fmt: skip
    found = explain_one([*told, *trace, overflow(STATS, size, 404_750_336)], vllm)
    assert (16, 193, 16_192) in triples(found)
    assert {each.num_qo_heads for each in found.solutions} == {16}


def test_sglang_fixes_its_size(explain_one: ExplainOne) -> None:
    # 128 heads gathered, 597 rows: 8 * 128 * 597 * 256 + 1 MiB, of 150 MiB.
    size = 8 * 128 * 597 * 256 + 1_048_576
    told = "server_args=ServerArgs(tp_size=8, dcp_size=8, max_running_requests=1024)"
    # The prefix chunks share the buffer: without the traceback it could be theirs as well.
    lines = [told, '"num_attention_heads": 128', overflow(STATS, size, 150 << 20, 71)]
    assert explain_one(lines).confidence == "consistent"
    trace = [
        'File "/x/sglang/srt/layers/attention/trtllm_mla_backend.py", line 9, in forward_decode',
        "out = flashinfer.decode.trtllm_batch_decode_with_kv_cache_mla(",
    ]
    found = explain_one([*trace, *lines])
    assert triples(found) == {(128, 597, 1)}
    # (150 MiB - 1 MiB) / (8 * 128 * 256) = 596.0.
    assert (found.overflow_threshold_batch, found.env) == (596, {})
    assert found.set == ("--max-running-requests 596",)
    assert any("no variable changes it" in note for note in found.notes)


def test_size_that_no_call_asks_for(explain_one: ExplainOne) -> None:
    found = explain_one([overflow(STATS, 1_611_661_313, 404_750_336)])
    assert (found.confidence, found.solutions) == ("unsolved", ())


def test_variable_that_was_overridden(explain_one: ExplainOne) -> None:
    found = explain_one([f"{VLLM}=1073741824", CRASH])
    assert any("it was overridden" in note for note in found.notes)


def test_a_counter_that_does_not_fit_is_the_same_for_a_larger_step(
    explain_one: ExplainOne,
) -> None:
    # 8,192 * 256 * 4 bytes whatever the call.
    found = explain_one(["vllm 0.26.0", overflow("trtllm_gen_counter_workspace", 8_388_608, 4_096)])
    assert found.need_bytes == 8_388_608
    assert any("whatever the call" in note for note in found.notes)
    assert not any("larger step" in note for note in found.notes)
