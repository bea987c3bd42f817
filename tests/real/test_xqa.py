"""XQA's calls under FlashInfer's own Python of three releases, on the board exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ws_guard.board import OVERRUN

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
OP = "xqa_wrapper"
#: What an H200 (132 SMs) wrote for 1 row of 32,768 tokens, 64/8 heads of 128: 16 CTAs for each of 8
#: KV heads. 128 x 2 statistics of 128 bytes, 128 outputs of 8 rows x 128 x 2 bytes.
SCRATCH = 16 * 8 * (2 * 128 + 8 * 128 * 2)


@pytest.fixture(scope="module")
def told(release: str, report_of: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What `xqa_calls.py` reports under one release."""
    # In a process of its own: it sets variables that FlashInfer reads as it is imported.
    return report_of(release, "xqa_calls", alone=True)


def shapes(told: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    """Those fields of each row's shape, and its eager calls."""
    return [(*(shape[name] for name in names), eager) for shape, eager in told["rows"]]


def test_every_call_is_counted_by_its_shape(told: dict[str, Any]) -> None:
    counted = told["counted"]
    names = ("batch", "heads", "kv_heads", "q_len", "qk", "vo", "workspace_bytes", "sm_count")
    # 10 in a row, then 10 in turn with another shape.
    assert shapes(counted["told"], *names) == [
        (16, 64, 8, 1, 128, 128, 64 * MIB, 132, 20),
        (32, 64, 8, 2, 128, 128, 64 * MIB, 132, 10),
    ]
    assert {shape["sm90_fp8"] for shape, _ in counted["told"]["rows"]} == {False}
    assert (counted["told"]["probe_errors"], counted["told"]["problems"]) == (0, [])
    assert counted["told"]["workspaces"] == ["ws0"]
    # The views that FlashInfer's Python made reached the native function as they were.
    assert counted["reached"] == {"semaphores": [0], "scratch": [8 * MIB, 56 * MIB], "calls": 30}


def test_a_certain_overrun_is_observed(told: dict[str, Any]) -> None:
    done = told["overrun"]["observe"]
    assert done["told"]["events"] == [[OP, OVERRUN, "observed", 1]]
    assert (done["made"], done["error"]) == (1, None)
    # Short KV and 16 rows need no scratch: of three calls one overran.
    assert shapes(done["told"], "batch") == [(1, 2), (16, 1)]


@pytest.mark.parametrize("action", ["raise", "split"])
def test_a_certain_overrun_is_raised(told: dict[str, Any], action: str) -> None:
    done = told["overrun"][action]
    assert done["told"]["events"] == [[OP, OVERRUN, "raised", 1]]
    assert done["made"] == 0
    error = done["error"]
    assert error["need_bytes"] == 8 * MIB + SCRATCH
    assert (error["slab_bytes"], error["available_bytes"]) == (SCRATCH, 4096) == (294_912, 4096)
    assert (error["op"], error["workspace"], error["workspace_bytes"]) == (OP, "ws0", 8_392_704)
    why = "(not split: fewer rows take no less scratch in XQA)"
    assert (why in error["text"]) == (action == "split")
    # The worker lives on.
    assert shapes(done["told"], "batch") == [(1, 2), (16, 1)]
    assert done["told"]["probe_errors"] == 0


def test_two_modules_in_turn_are_told_apart(told: dict[str, Any]) -> None:
    done = told["alternating"]
    assert shapes(done["told"], "batch", "qk") == [(16, 64, 10), (16, 128, 10)]
    assert len(set(done["specs"])) == 2


def test_separate_buffers_count_as_if_they_were_one(told: dict[str, Any]) -> None:
    # 8 MiB of semaphores elsewhere, 1 MiB of scratch.
    assert shapes(told["two_buffers"], "batch", "workspace_bytes") == [(1, 9 * MIB, 6)]
    assert (told["two_buffers"]["warnings"], told["two_buffers"]["events"]) == ([], [])


def test_dirty_semaphores_are_warned_of(told: dict[str, Any]) -> None:
    (warning,) = told["dirty"]["warnings"]
    assert warning.startswith("ws0: its counter was not zero at the first call seen")


def test_a_ragged_query_is_certain_only_where_every_token_is_there(told: dict[str, Any]) -> None:
    if told["release"] != "0.7.4":
        assert told["ragged"] is None
        return
    # Three calls of up to 3 tokens a row, of which one has all nine tokens.
    assert shapes(told["ragged"], "batch", "q_len") == [(3, 3, 3)]
    assert told["ragged"]["events"] == [[OP, OVERRUN, "observed", 1]]
    assert told["ragged"]["probe_errors"] == 0


def test_an_xqa_that_is_not_understood_leaves_trtllm_gen_watched(told: dict[str, Any]) -> None:
    done = told["not_understood"]
    assert [(shape["op"], shape["batch"], eager) for shape, eager in done["rows"]] == [(0, 24, 3)]
    assert done["problems"] == [
        f"calls of {OP} are not seen, its source is not understood: it says otherwise"
    ]
    assert done["probe_errors"] == 0


def test_a_provisioned_workspace_takes_both_views(told: dict[str, Any]) -> None:
    done = told["provisioned"]
    assert (done["semaphores"], done["scratch"]) == (0, [8 * MIB, 8 * MIB])
    assert done["dtypes"] == ["torch.uint8", "torch.uint8"]
    # The caller's own 8 MiB + 4,096 bytes would have been raised about.
    assert shapes(done["told"], "batch", "workspace_bytes") == [(1, 16 * MIB, 6)]
    assert (done["told"]["events"], done["told"]["workspaces"]) == ([], ["ws0"])
