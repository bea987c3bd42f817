"""What to set: never less than what the engine has by itself, and never two things at odds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from messages import (
    CRASH,
    FLAGS,
    HEADS,
    SGLANG,
    STATS,
    VLLM,
    failed_step,
    old_overflow,
    overflow,
)

from ws_guard.explain.text import findings_text, verdict_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]

MODEL = '"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128'
#: 2 * 148 / 8 = 37 tiles of 128 rows, 64 heads, 128 floats each; with tmp_s 149 MiB.
PLAN = overflow("batch_prefill_tmp_v", 64 * 37 * 128 * 128 * 4, 128 << 20)
GATHERED = (
    "non-default args: {'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, "
    "'max_num_batched_tokens': 16384}"
)
#: 64 heads, 12,288 rows, in a workspace of 512 MiB of layout C.
LARGE = overflow(STATS, 8 * 64 * 12_288 * 256 + (1 << 20), 512 << 20, 71)


@pytest.mark.parametrize(
    ("told", "variable", "default"),
    [
        ("vLLM API server version 0.26.0", VLLM, 394 << 20),
        # 512 MiB for trtllm_mha, 384 MiB for dsa.
        ("server_args=ServerArgs(tp_size=1)", SGLANG, 512 << 20),
    ],
    ids=["vllm", "sglang"],
)
def test_no_plan_makes_the_default_smaller(
    told: str, variable: str, default: int, explain_one: ExplainOne
) -> None:
    lines = [told, f"{variable}={128 << 20}", "NVIDIA B200", MODEL, PLAN]
    found = explain_one(lines)
    # tmp_s: a float for each of the 64 * 37 * 128 rows.
    assert found.need_bytes == 64 * 37 * 128 * (128 + 1) * 4
    assert found.recommended_workspace_bytes == default
    assert found.env == {variable: str(default)}
    assert any(f"{variable} below {default:,}" in note for note in found.notes)


def test_a_plan_beyond_the_default_is_told_as_it_is(explain_one: ExplainOne) -> None:
    # Ten times the tiles.
    plan = overflow("batch_prefill_tmp_v", 64 * 370 * 128 * 128 * 4, 128 << 20)
    found = explain_one(["vLLM API server version 0.26.0", MODEL, plan])
    assert found.env == {VLLM: str(64 * 370 * 128 * (128 + 1) * 4)}
    assert not any("below" in note for note in found.notes)


@pytest.mark.parametrize(
    "told", ["vLLM API server version 0.12.0", "vLLM is here, flashinfer-python==0.2.9"]
)
def test_the_default_of_older_releases_is_not_known(told: str, explain_one: ExplainOne) -> None:
    found = explain_one([told, "NVIDIA B200", MODEL, PLAN])
    assert found.env == {VLLM: str(64 * 37 * 128 * (128 + 1) * 4)}


@pytest.mark.parametrize(("version", "has_it"), [("0.11.0", False), ("0.11.1", True)])
def test_a_release_without_the_variable(
    version: str, has_it: bool, explain_one: ExplainOne
) -> None:
    """By vLLM's own sources: 0.11.0 has a constant of 256 MiB."""
    large = overflow("batch_prefill_tmp_v", 64 * 370 * 128 * 128 * 4, 256 << 20)
    for plan, need in ((PLAN, 64 * 37 * 128 * 129 * 4), (large, 64 * 370 * 128 * 129 * 4)):
        found = explain_one([f"vLLM API server version {version}", MODEL, plan])
        assert found.recommended_workspace_bytes == need
        assert found.env == ({VLLM: str(need)} if has_it else {})
        told = [note for note in found.notes if "take that or a later one" in note]
        if has_it:
            assert told == []
            continue
        (note,) = told
        assert f"vllm 0.11.0 has a constant and no {VLLM}, which came with 0.11.1" in note
        # 149 MiB are less than the 394 MiB of later releases, ten times as much is not.
        enough = need <= 394 << 20
        assert ("enough for this" if enough else f"set {VLLM}={need} there") in note
        assert any("FLASHINFER_WORKSPACE_BUFFER_SIZE in v1/" in note for note in found.notes)


@pytest.mark.parametrize(
    ("fault", "vllm", "sglang"),
    [
        # 394 MiB or 512 MiB, and the slab; the plan is less than either.
        (LARGE, (394 << 20) + 1_611_661_312, (512 << 20) + 1_611_661_312),
        (PLAN, 394 << 20, 512 << 20),
    ],
    ids=["slab", "plan"],
)
def test_without_a_word_about_the_engine_both_are_told(
    fault: str, vllm: int, sglang: int, explain_one: ExplainOne
) -> None:
    found = explain_one([fault])
    assert (found.env, found.set) == ({}, ())
    assert f"if this is vllm: {VLLM}={vllm}" in found.notes
    assert f"if this is sglang: {SGLANG}={sglang}" in found.notes
    assert f"  note: if this is vllm: {VLLM}={vllm}" in findings_text([found])


def test_a_fixed_size_and_heads_that_are_not_known(explain_one: ExplainOne) -> None:
    """SGLang's trtllm_mla has 150 MiB: only fewer requests help, and how many the heads decide."""
    told = (
        "server_args=ServerArgs(model_path='m', tp_size=8, dcp_size=8, max_running_requests=2048, "
        "chunked_prefill_size=16384, attention_backend='trtllm_mla')"
    )
    # 128 heads, 1,000 requests.
    stats = 8 * 128 * 1_000 * 256 + (1 << 20)
    found = explain_one([told, "sglang==0.5.23", overflow(STATS, stats, 150 << 20, 71)])
    assert (found.confidence, found.env) == ("consistent", {})
    # (150 MiB - 1 MiB) / (8 * heads * 256): 596.0 rows of 128 heads, 1,192.0 of 64.
    assert found.set == ("--max-running-requests 596",)
    assert any("--max-running-requests 1192 for 64" in note for note in found.notes)
    text = findings_text([found])
    assert "  set: --max-running-requests 596" in text
    assert "set: workspace" not in text


def test_a_fixed_size_and_rows_of_any_length(explain_one: ExplainOne) -> None:
    """Chunks of a cached prefix: without the tokens of a step nobody knows how long they are."""
    told = [
        "server_args=ServerArgs(model_path='m', tp_size=8, attention_backend='trtllm_mla')",
        '  File "/x/sglang/srt/layers/attention/trtllm_mla_backend.py", line 9, in forward_extend',
        "    out = trtllm_ragged_attention_deepseek(",
    ]
    found = explain_one([*told, overflow(STATS, 8 * 16 * 8_192 * 256 + (1 << 20), 150 << 20, 71)])
    assert len({each.lowest_q_len for each in found.solutions}) > 1
    assert (found.recommended_workspace_bytes, found.set) == (None, ())
    assert any("but a lower --max-running-requests helps" in note for note in found.notes)


def test_a_fixed_size_that_the_log_does_not_tell(explain_one: ExplainOne) -> None:
    told = "server_args=ServerArgs(tp_size=8, dcp_size=8, attention_backend='trtllm_mla')"
    found = explain_one([told, old_overflow(STATS, 8 * 128 * 1_000 * 256 + (1 << 20))])
    assert (found.recommended_workspace_bytes, found.set) == (None, ())
    assert any("but a lower --max-running-requests helps" in note for note in found.notes)
    assert "set: workspace" not in findings_text([found])


def test_a_slab_of_no_known_site_stands_above_the_default(explain_one: ExplainOne) -> None:
    """SGLang's sites cannot ask for it: a backend that the table does not know did."""
    stats = 8 * 64 * 100 * 256 + (1 << 20)
    counter = overflow(STATS, stats, 12 << 20, 49)
    found = explain_one(["sglang==0.5.23", "flashinfer-python==0.6.14", "dcp=1", counter])
    assert found.env == {SGLANG: str((512 << 20) + stats)}


def test_what_sizes_itself_is_not_set(explain_one: ExplainOne) -> None:
    """vLLM 0.33 sizes sparse MLA for the step, so that only the variable can have been too low."""
    told = [
        "vLLM API server version 0.33.0",
        GATHERED,
        '"num_attention_heads": 64',
        f"{VLLM}={512 << 20}",
        'File "/x/vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py", line 9, in forward',
        "    out = trtllm_batch_decode_with_kv_cache_mla(",
    ]
    found = explain_one([*told, LARGE])
    assert (found.confidence, found.workspace_bytes) == ("exact", (512 << 20,))
    assert (found.env, found.set) == ({}, (f"unset {VLLM}",))
    # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB: what vLLM makes of it then.
    assert found.recommended_workspace_bytes == 2_561_671_168
    text = findings_text([found])
    assert f"  unset: {VLLM}" in text
    assert "  set: " not in text


def test_without_a_release_the_variable_is_set(explain_one: ExplainOne) -> None:
    """Releases from 0.27.1 to 0.29.0 carve by layout C as well, and size nothing themselves."""
    found = explain_one([GATHERED, '"num_attention_heads": 64', LARGE])
    # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB: whoever sizes it itself takes this value, too.
    assert found.env == {VLLM: "2561671168"}
    assert any("from 0.30.0 on sizes it itself" in note for note in found.notes)


def test_what_may_size_itself_is_set_and_no_note_speaks_against_it(
    explain_one: ExplainOne,
) -> None:
    """Without tokens of a step and the model's kind it may as well be dense attention."""
    told = [
        "vLLM API server version 0.33.0",
        (
            "non-default args: {'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, "
            "'max_num_seqs': 2048}"
        ),
        '"num_attention_heads": 64',
    ]
    stats = 8 * 64 * 2_048 * 256 + (1 << 20)
    found = explain_one([*told, overflow(STATS, stats, 200_000_000, 71)])
    assert found.env == {VLLM: str((394 << 20) + stats)}
    (note,) = [note for note in found.notes if "sizes" in note and "itself" in note]
    assert note.startswith("if it is sparse_mla:")


def test_the_default_size_is_not_of_what_sizes_itself(explain_one: ExplainOne) -> None:
    """394 MiB under DCP: dense attention has them, sparse MLA would have been given more."""
    told = [
        "vLLM API server version 0.33.0",
        (
            "non-default args: {'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, "
            "'max_num_seqs': 4096}"
        ),
        '"num_attention_heads": 64',
    ]
    # 64 heads, 4,096 requests: 513 MiB.
    stats = 8 * 64 * 4_096 * 256 + (1 << 20)
    found = explain_one([*told, overflow(STATS, stats, 394 << 20, 71)])
    assert found.env == {VLLM: str((394 << 20) + stats)}
    assert (found.solutions[0].batch_size, found.solutions[0].lowest_q_len) == (4_096, 1)
    # Dense attention: how many tokens each request drafts is not told.
    assert found.solutions[0].highest_q_len != 1


def test_advice_for_this_call_alone_says_so_in_its_line(explain_one: ExplainOne) -> None:
    """394 MiB + 8 * 64 * 12,288 * 256 + 1 MiB are enough for the call, and for no larger step."""
    frame = '  File "/x/vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py", line 330, in f'
    tail = explain_one([frame, CRASH, failed_step(12_288)])
    assert (tail.env, tail.set) == ({VLLM: "2024800256"}, (f"{VLLM}=2024800256",))
    assert f"\n  set at least: {VLLM}=2024800256\n" in findings_text([tail])
    assert "workspace to set at least 2,024,800,256 B" in verdict_lines([tail])[0]
    whole = findings_text([explain_one([FLAGS, HEADS, frame, CRASH, failed_step(12_288)])])
    assert f"\n  set: {VLLM}=2561671168\n" in whole
    assert "at least" not in whole
    assert "\n  set at least: workspace " in findings_text([explain_one([CRASH])])
