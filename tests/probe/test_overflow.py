"""The error that `raise` raises: its words, its numbers, and how it travels."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import ws_guard
from ws_guard.probe.calls import NativeCall
from ws_guard.probe.overflow import WorkspaceOverflowError
from ws_guard.sizing import LAYOUTS, Call, HeadDims

MIB = 1 << 20
OP = "trtllm_paged_attention_decode"
SPARSE_MLA = HeadDims(576, 512, 2048)


def error_of(
    batch: int = 3_081,
    *,
    layout: str = "B",
    size: int = 394 * MIB,
    counter: int | None = None,
    planned: dict[str, Any] | None = None,
    why_not: str = "",
) -> WorkspaceOverflowError:
    call = Call("decode", 64, batch, 1, True, 148, dims=SPARSE_MLA)
    native = NativeCall(batch, 64, 1, True, 148, size, 4096, SPARSE_MLA, 65_536, batch, counter)
    return WorkspaceOverflowError.of(
        op=OP,
        workspace="sparse_decode",
        call=call,
        native=native,
        layout=LAYOUTS[layout],
        planned=planned or {},
        why_not_split=why_not,
    )


def test_words() -> None:
    # 8 * 64 * 3,081 * 256 + 1 MiB behind a counter of 8 MiB; 394 MiB more are advised.
    assert str(error_of()) == (
        "ws_guard: trtllm_paged_attention_decode would overflow workspace sparse_decode: "
        "3,081 rows x 64 heads x 1 tokens with LSE need 413,270,016 bytes, it has 413,138,944: "
        "trtllm_gen_softmax_workspace takes 404,881,408, 404,750,336 available; "
        "the largest batch that fits is 3,080; give the workspace 818,020,352 bytes"
    )


def test_reason_of_what_was_not_split_comes_last() -> None:
    text = str(error_of(why_not="its output is FP4"))
    assert text == f"{error_of()} (not split: its output is FP4)"


def test_advice_of_the_plan_where_it_covers_the_call() -> None:
    planned = {"recommended_workspace_bytes": 2_561_671_168, "env": {"VLLM_SIZE": "2561671168"}}
    assert error_of(planned=planned).remedy == "set VLLM_SIZE=2561671168"
    assert (
        error_of(planned=planned | {"env": {}}).remedy == "give the workspace 2,561,671,168 bytes"
    )
    small = planned | {"recommended_workspace_bytes": 413_270_015}
    assert error_of(planned=small).remedy == "give the workspace 818,020,352 bytes"
    unknown = planned | {"recommended_workspace_bytes": None}
    assert error_of(planned=unknown).remedy == "give the workspace 818,020,352 bytes"


def test_overrun_names_the_scratch() -> None:
    error = error_of(74, layout="C", size=12 * MIB)
    assert "would overrun workspace sparse_decode" in str(error)
    assert error.slab == "trtllm_gen_scratch_workspace"
    # 12 MiB less 8 * 64 * 74 * 256 + 1 MiB.
    assert (error.slab_bytes, error.available_bytes) == (9_775_104, 1_835_008)


def test_short_counter_has_no_numbers() -> None:
    error = error_of(16, layout="C", counter=4_095)
    assert (error.slab, error.slab_bytes, error.available_bytes) == (
        "multi_ctas_kv_counter_buffer",
        None,
        None,
    )
    assert "multi_ctas_kv_counter_buffer is too small" in str(error)
    assert error.remedy == (
        "pass a multi_ctas_kv_counter_buffer for this batch and these heads, or none"
    )


def test_it_is_a_runtime_error_as_flashinfers_own() -> None:
    assert issubclass(ws_guard.WorkspaceOverflowError, RuntimeError)
    assert ws_guard.WorkspaceOverflowError is WorkspaceOverflowError


def test_it_travels_between_processes() -> None:
    """Engines send a worker's error to the process that asked."""
    error = error_of()
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert copy.batch == 3_081


@pytest.mark.parametrize("layout", ["B", "C"])
def test_threshold_and_need_agree_with_the_words(layout: str) -> None:
    error = error_of(12_288, layout=layout)
    assert f"fits is {error.overflow_threshold_batch:,};" in str(error)
    assert f"need {error.need_bytes:,} bytes, it has {error.workspace_bytes:,}" in str(error)
