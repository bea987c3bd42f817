"""Observe, raise and split under FlashInfer's own Python and its own launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flashinfer_calls import MIB
from guard_calls import ACTIONS, FITS, HEADS

from ws_guard.board import OVERFLOW, OVERRUN, Outcome
from ws_guard.sizing import LAYOUTS, Call, HeadDims, need

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 394 * MIB
#: Steps of more rows than fit; each is split into as few pieces as can be, of near-equal rows.
STEPS = ("reported", "one more", "two tokens", "dense", "two tokens dense")


@pytest.fixture(scope="module")
def told(release: str, report_of: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What `guard_calls.py` reports under one release."""
    return report_of(release, "guard_calls")


def stats(batch: int) -> int:
    """8 bytes per head and row, rows rounded up to 256 query tokens; a guard of 1 MiB."""
    return 8 * HEADS * batch * 256 + MIB


def counter(told: dict[str, Any]) -> int:
    """What stands in front of the statistics: a counter of 8 MiB in layout B."""
    return 8 * MIB if told["layout"] == "B" else 0


def rows_of(told: dict[str, Any], step: str) -> int:
    fits = FITS[told["layout"]]
    return {"reported": 12_288, "two tokens dense": 2 * fits}.get(step, fits + 1)


@pytest.mark.parametrize("step", [*STEPS, "overrun"])
@pytest.mark.parametrize("action", ACTIONS)
def test_every_step_is_one_call_and_one_event(told: dict[str, Any], step: str, action: str) -> None:
    done = told["done"][step][action]
    kind = OVERRUN if step == "overrun" else OVERFLOW
    name = {"observe": "observed", "raise": "raised", "split": "split"}[action]
    assert done["events"] == [[kind, name, 1]]
    observed = Outcome.OVERRUN if step == "overrun" else Outcome.OVERFLOW
    outcome = {"observe": observed, "raise": Outcome.RAISED, "split": Outcome.SPLIT}[action]
    assert done["outcomes"] == [outcome, Outcome.EAGER]
    assert done["counts"] == {"eager": 2, "captured": 0, "replayed": 0, "tuning": 0}
    assert done["probe_errors"] == 0
    # The worker lives on: the step after it is launched as ever.
    assert [(each["batch"], each["pdl"]) for each in done["later"]] == [(24, True)]


@pytest.mark.parametrize("step", STEPS)
def test_observe_lets_the_native_error_happen(told: dict[str, Any], step: str) -> None:
    done = told["done"][step]["observe"]
    kind, text = done["error"]
    rows = rows_of(told, step)
    assert kind == "RuntimeError"
    assert "Buffer overflow when allocating memory for trtllm_gen_softmax_workspace" in text
    assert f"size {stats(rows)} and alignment 16, but only {SIZE - counter(told)} bytes" in text
    assert done["launched"] == []


@pytest.mark.parametrize("step", STEPS)
def test_raise_tells_all_before_the_native_call(told: dict[str, Any], step: str) -> None:
    done = told["done"][step]["raise"]
    kind, text = done["error"]
    rows, tokens = rows_of(told, step), 2 if "two tokens" in step else 1
    need, left = stats(rows) + counter(told), SIZE - counter(told)
    assert kind == "WorkspaceOverflowError"
    assert done["launched"] == []
    # vLLM's default workspace beside the slab that grew with the batch.
    advised = SIZE + stats(rows)
    assert done["told"] == {
        "op": "trtllm_paged_attention_decode",
        "workspace": "ws0",
        "batch": rows,
        "heads": 64,
        "q_len": tokens,
        "lse": True,
        "need_bytes": need,
        "workspace_bytes": SIZE,
        "slab": "trtllm_gen_softmax_workspace",
        "slab_bytes": stats(rows),
        "available_bytes": left,
        "overflow_threshold_batch": FITS[told["layout"]],
        "remedy": f"give the workspace {advised:,} bytes",
    }
    assert text == (
        "ws_guard: trtllm_paged_attention_decode would overflow workspace ws0: "
        f"{rows:,} rows x 64 heads x {tokens} tokens with LSE need {need:,} bytes, it has "
        f"{SIZE:,}: trtllm_gen_softmax_workspace takes {stats(rows):,}, {left:,} available; "
        f"the largest batch that fits is {FITS[told['layout']]:,}; "
        f"give the workspace {advised:,} bytes"
    )


def test_numbers_of_the_reported_step(told: dict[str, Any]) -> None:
    """As FlashInfer reported them."""
    seen = told["done"]["reported"]["raise"]["told"]
    left = {"B": 404_750_336, "C": 413_138_944}[told["layout"]]
    assert (seen["slab_bytes"], seen["available_bytes"]) == (1_611_661_312, left)
    seen = told["done"]["one more"]["raise"]["told"]
    asked = {"B": 404_881_408, "C": 413_270_016}[told["layout"]]
    assert (seen["slab_bytes"], seen["available_bytes"]) == (asked, left)


@pytest.mark.parametrize(
    ("step", "pieces"),
    [
        # 12,288 rows are 3.99 times 3,080 and 3.91 times 3,144.
        ("reported", {"B": [3_072] * 4, "C": [3_072] * 4}),
        # Never 3,080 + 1: a single row would take the split-KV path.
        *[
            (step, {"B": [1_541, 1_540], "C": [1_573, 1_572]})
            for step in ("one more", "two tokens", "dense")
        ],
        ("two tokens dense", {"B": [3_080] * 2, "C": [3_144] * 2}),
    ],
)
def test_split_launches_every_row_once_and_in_order(
    told: dict[str, Any], step: str, pieces: dict[str, list[int]]
) -> None:
    done = told["done"][step]["split"]
    assert done["error"] == ["", ""]
    launched, tokens = done["launched"], 2 if "two tokens" in step else 1
    assert [each["batch"] for each in launched] == pieces[told["layout"]]
    assert sum(each["batch"] for each in launched) == rows_of(told, step)
    # A piece must not start before the one in front of it has left the workspace.
    assert not any(each["pdl"] for each in launched)
    row = 0
    for each in launched:
        batch = each["batch"]
        assert each["launch"] == [batch, batch * tokens]
        # FlashInfer hands over rows of these, and tokens of the query and the LSE.
        lines = {name: tokens if name in ("query", "lse") else 1 for name in each["lines"]}
        if tokens > 1 and each["lines"]["out"] == batch * tokens:
            lines["out"] = tokens
        assert each["first"] == {name: row * per_row for name, per_row in lines.items()}
        assert each["lines"] == {name: batch * per_row for name, per_row in lines.items()}
        assert each["lse_line"] == row * tokens
        row += batch
    assert set(launched[0]["first"]) == {"out", "query", "block_tables", "seq_lens", "lse"}


def test_certain_overrun_is_observed_after_the_launch(told: dict[str, Any]) -> None:
    done = told["done"]["overrun"]["observe"]
    assert done["error"] == ["", ""]
    assert [each["batch"] for each in done["launched"]] == [74]


def test_certain_overrun_is_raised_before_the_launch(told: dict[str, Any]) -> None:
    done = told["done"]["overrun"]["raise"]
    assert done["launched"] == []
    seen = done["told"]
    # Layout C keeps 12 MiB less the statistics of 74 rows, layout B 12 MiB less its counter.
    left = {"B": 4 * MIB, "C": 12 * MIB - stats(74)}[told["layout"]]
    assert seen["available_bytes"] == left
    assert (seen["slab"], seen["slab_bytes"]) == ("trtllm_gen_scratch_workspace", 9_775_104)
    kind, text = done["error"]
    assert kind == "WorkspaceOverflowError"
    assert "would overrun workspace ws0" in text


def test_scratch_of_every_piece_counts(told: dict[str, Any]) -> None:
    """The whole call takes the split-KV path, so its pieces may: each needs room for it."""
    launched = told["done"]["overrun"]["split"]["launched"]
    batches = [each["batch"] for each in launched]
    assert sum(batches) == 74
    assert len(batches) > 1
    assert max(batches) - min(batches) <= 1
    assert [each["first"]["query"] for each in launched] == [
        sum(batches[:n]) for n in range(len(batches))
    ]

    def bytes_of(batch: int) -> int:
        lse, dims = told["layout"] == "C", HeadDims(576, 512, 2048)
        call = Call("decode", HEADS, batch, 1, lse, 148, dims=dims)
        return need(call, LAYOUTS[told["layout"]]).total

    assert max(map(bytes_of, batches)) <= 12 * MIB
    # One piece fewer would not have done.
    fewer = len(batches) - 1
    assert max(bytes_of(74 // fewer), bytes_of(-(-74 // fewer))) > 12 * MIB


@pytest.mark.parametrize("op", ["context", "ragged", "dsv4"])
def test_other_ops_are_raised_with_the_reason(told: dict[str, Any], op: str) -> None:
    done = told["others"][op]
    if (op, told["layout"]) == ("dsv4", "C"):
        # It carves nothing there: nothing to be refused.
        assert done["error"] == ["", ""]
        assert done["events"] == []
        return
    kind, text = done["error"]
    assert kind == "WorkspaceOverflowError"
    assert text.endswith(f"(not split: {done['told']['op']} keeps its offsets on the device)")
    assert done["events"] == [[OVERFLOW, "raised", 1]]


def test_pieces_that_would_use_scratch_are_none(told: dict[str, Any]) -> None:
    done = told["others"]["pieces too small"]
    reason = "pieces that fit would have fewer than 75 rows, and use scratch"
    assert done["error"][1].endswith(f"(not split: {reason})")
    assert done["launched"] == []
