"""The plan: the reference deployment of the public contract key by key, and its edges."""

from __future__ import annotations

from typing import Any

import pytest

import ws_guard
from ws_guard.sizing import LAYOUTS, Call, judge

MIB = 1 << 20


def plan(**changes: Any) -> ws_guard.Plan:
    """The reported deployment: GLM-5.2 on 8 B200s, DCP 8, steps of up to 16,384 tokens."""
    arguments: dict[str, Any] = {
        "heads": 64,
        "tp": 8,
        "dcp": 8,
        "max_num_batched_tokens": 16_384,
        "workspace_bytes": 394 * MIB,
        "flashinfer": "0.6.14",
        "sm_count": 148,
    }
    return ws_guard.plan(**{**arguments, **changes})


def test_the_reported_crash_key_by_key() -> None:
    assert plan()._asdict() == {
        "fits": False,
        "reasons": ["overflow"],
        "kernel_heads": 64,
        "planned_batch": 16_384,
        "max_q_len": 1,
        "lse": True,
        "layout": "B",
        "slabs": {"counter": 8_388_608, "softmax_stats": 2_148_532_224, "scratch": 0},
        "need_bytes": 2_156_920_832,
        "workspace_bytes": 413_138_944,
        "margin_bytes": -1_743_781_888,
        "margin_batch": -13_304,
        "margin_ratio": -1_743_781_888 / 413_138_944,
        "overflow_threshold_batch": 3_080,
        "overrun_batches": None,
        "recommended_workspace_bytes": 413_138_944 + 2_148_532_224,
        "extra_bytes_per_gpu": 2_148_532_224,
        "env": {},
        "sites": [],
        "notes": [],
    }


def test_the_recommendation_fits() -> None:
    better = plan(workspace_bytes=plan().recommended_workspace_bytes)
    assert (better.fits, better.reasons, better.extra_bytes_per_gpu) == (True, [], 0)
    # What stays free is the base less the counter: 413,138,944 - 8,388,608
    assert better.margin_bytes == 404_750_336


def test_without_dcp_there_is_no_slab() -> None:
    answer = plan(dcp=1)
    assert (answer.fits, answer.lse, answer.kernel_heads) == (True, False, 8)
    assert answer.slabs == {"counter": 8_388_608, "softmax_stats": 0, "scratch": 0}
    assert answer.recommended_workspace_bytes == 413_138_944
    assert (answer.overflow_threshold_batch, answer.margin_batch) == (None, None)
    # counter + the scratch bound of the batches up to 74: 8,388,608 + 9,850,880
    assert answer.need_bytes == 18_239_488


def test_half_the_tokens() -> None:
    assert plan(max_num_batched_tokens=8_192).slabs["softmax_stats"] == 1_074_790_400


@pytest.mark.parametrize(("release", "threshold"), [("0.6.14", 1_540), ("0.7.4", 1_572)])
def test_128_heads(release: str, threshold: int) -> None:
    assert plan(heads=128, flashinfer=release).overflow_threshold_batch == threshold


def test_a_carve_that_fits_is_no_fit_where_scratch_does_not() -> None:
    answer = plan(max_num_batched_tokens=74, workspace_bytes=12 * MIB, flashinfer="0.7.4")
    assert (answer.fits, answer.reasons) == (False, ["overrun"])
    assert answer.overflow_threshold_batch == 88  # (12 MiB - 1 MiB) / 131,072
    assert answer.overrun_batches == (13, 74)
    assert answer.extra_bytes_per_gpu > 0


def test_heads_that_do_not_divide_are_counted_up_and_noted() -> None:
    answer = plan(heads=60, tp=8, dcp=8)
    assert answer.kernel_heads == 64  # ceil(60 / 8) * 8
    (note,) = answer.notes
    assert note == (
        "60 heads do not divide by tp 8: counted as the next whole number per rank; "
        "the engine may refuse"
    )


def test_dcp_over_prefill_context_parallel_ranks() -> None:
    assert plan(tp=4, pcp=2, dcp=8).kernel_heads == 128  # ceil(64 / 4) * 8


def test_grid_limit() -> None:
    answer = plan(dcp=1, max_num_batched_tokens=65_536)
    assert answer.reasons == ["grid_limit"]
    (note,) = answer.notes
    assert note == (
        "a batch above 65,535 cannot launch whatever the workspace: "
        "lower max_num_batched_tokens to 65,535"
    )
    assert plan(dcp=1, max_num_batched_tokens=65_535).fits


def test_tokens_and_requests_together() -> None:
    answer = plan(max_num_seqs=24)
    assert answer == plan()._replace(notes=answer.notes)
    assert answer.notes == [
        "rows are the tokens of a step: max_num_seqs does not change the answer"
    ]


def test_the_last_step_that_fits() -> None:
    # 3,080 rows: 8 * 64 * 256 * 3,080 + 1 MiB = 404,750,336 are left by the counter, exactly
    last = plan(max_num_batched_tokens=3080)
    assert (last.fits, last.margin_bytes, last.margin_batch) == (True, 0, 0)
    # What is just large enough needs no more, though the recommendation keeps a base of 394 MiB
    assert last.recommended_workspace_bytes > last.workspace_bytes
    assert last.extra_bytes_per_gpu == 0
    assert plan(max_num_batched_tokens=3081).reasons == ["overflow"]


def test_a_call_is_judged_without_a_word_about_the_deployment() -> None:
    judged = judge(Call("decode", 64, 16_384, lse=True), LAYOUTS["B"], 394 * MIB)
    assert judged == plan()


def test_requests_where_no_tokens_are_given() -> None:
    assert plan(max_num_batched_tokens=None, max_num_seqs=24).planned_batch == 24


def test_a_development_build_on_a_boundary_is_judged_by_the_worse_layout() -> None:
    answer = plan(max_num_batched_tokens=3_144, flashinfer="0.6.15.dev20260801")
    assert (answer.layout, answer.overflow_threshold_batch) == ("B", 3_080)
    assert "between layouts B and C" in answer.notes[0]
    # The reported crash ran a build of 0.6.14: no boundary, layout B on both sides
    assert plan(flashinfer="0.6.14.dev20260705").notes == []


def test_a_release_newer_than_any_looked_at_is_said() -> None:
    assert "newer than 0.7.4" in plan(flashinfer="0.9.0").notes[0]


def test_an_impossible_sm_count_still_gets_a_recommendation_that_fits() -> None:
    # 1,024 SMs: the scratch bound 1,024 * 66,560 = 68,157,440 stays within the base
    answer = plan(dcp=1, sm_count=1_024, workspace_bytes=MIB, flashinfer="0.7.4")
    assert answer.reasons == ["overrun"]
    assert plan(dcp=1, sm_count=1_024, workspace_bytes=answer.recommended_workspace_bytes).fits


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 0}, "heads must be between 1"),
        ({"heads": -64}, "heads must be between 1"),
        ({"tp": 0}, "tp must be between 1"),
        ({"dcp": 3}, "dcp 3 must divide tp x pcp = 8; change dcp or tp"),
        ({"dp": -1}, "dp must be between 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be between 1"),
        (
            {"max_num_batched_tokens": None},
            "max_num_batched_tokens is missing: pass the tokens of",
        ),
        ({"max_num_batched_tokens": 2**40}, "max_num_batched_tokens must be between 1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be between 1"),
        ({"max_q_len": 0}, "max_q_len must be between 1"),
        ({"workspace_bytes": 0}, "workspace_bytes must be between 1"),
        ({"sm_count": 100_000}, "sm_count must be between 1 and 1,024"),
        ({"heads": 2**31}, "heads must be between 1 and 2,147,483,647, got 2,147,483,648"),
        ({"tp": 2**31}, "tp must be between 1 and "),
        ({"max_q_len": 2**31}, "max_q_len must be between 1 and 2,147,483,647"),
        (
            {"heads": 2**31 - 1, "tp": 1, "dcp": 1, "max_q_len": 2**31 - 1},
            "num_qo_heads 2,147,483,647 x batch_size 16,384 x max_q_len 2,147,483,647 is more ",
        ),
    ],
)
def test_impossible_inputs_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ws_guard.InputError, match=f"^{words}"):
        plan(**changes)
