"""The reported step, refused on the caller's workspace, launched on ours: by the real launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flashinfer_calls import MIB

from ws_guard.board import OVERFLOW

if TYPE_CHECKING:
    from collections.abc import Callable

DECODE = "trtllm_paged_attention_decode"
#: 8 bytes for each of 64 heads, 12,288 rows and 256 slots; a guard of 1 MiB.
STATS = 8 * 64 * 12_288 * 256 + MIB


@pytest.fixture(scope="module")
def told(release: str, report_of: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What `provision_calls.py` reports under one release."""
    return report_of(release, "provision_calls")


def counter(told: dict[str, Any]) -> int:
    """Layout B keeps a counter of 8 MiB in front of the statistics."""
    return 8 * MIB if told["release"] == "0.6.14" else 0


def offsets(told: dict[str, Any], rows: int) -> dict[str, int]:
    """Slabs from the workspace's start, each behind the one before it."""
    stats = 8 * 64 * rows * 256 + MIB
    first = {"counter": 0} if counter(told) else {}
    return {**first, "softmax_stats": counter(told), "scratch": counter(told) + stats}


def test_the_step_is_refused_without(told: dict[str, Any]) -> None:
    done = told["without"]
    assert done["launches"] == 0
    assert f"with size {STATS} and alignment 16, but only" in done["error"]
    assert STATS == 1_611_661_312


def test_the_step_is_launched_on_what_was_planned(told: dict[str, Any]) -> None:
    # 394 MiB and the slab of 16,384 rows: 8 x 64 x 16,384 x 256 + 1 MiB.
    assert told["bytes"] == 413_138_944 + 2_148_532_224 == 2_561_671_168
    for done in [*told["with"], told["first again"]]:
        assert (done["error"], done["launches"], done["batch"]) == ("", 1, 12_288)
        assert done["offsets"] == offsets(told, 12_288)


def test_its_untouched_pages_take_no_memory(told: dict[str, Any]) -> None:
    # The zone of 1 MiB is painted; else this test would ask 5 GB of its machine.
    assert told["resident"] < 256 * MIB


def test_a_second_caller_waits_for_a_second_provision(told: dict[str, Any]) -> None:
    assert told["second"]["launches"] == 0
    assert "Buffer overflow when allocating memory" in told["second"]["error"]
    done = told["second provision"]
    assert (done["error"], done["launches"]) == ("", 1)
    assert done["offsets"] == offsets(told, 12_288)


def test_the_board_tells_of_it_under_the_callers_names(told: dict[str, Any]) -> None:
    done = told["observed"]
    assert done["counts"] == {"eager": 6, "captured": 0, "replayed": 0, "tuning": 0}
    assert done["events"] == [[DECODE, OVERFLOW, "observed", 1]]
    assert (done["names"], done["probe_errors"]) == (["ws0", "ws1"], 0)
    assert done["sizes"] == {"ws0": told["bytes"], "ws1": told["bytes"]}
    need = counter(told) + STATS
    assert done["peaks"]["ws0"] == [12_288, need, told["bytes"] - need]
    # Where nothing had been provisioned yet, it was refused.
    assert done["peaks"]["ws1"] == [12_288, need, 394 * MIB - need]


def test_one_that_is_too_small_is_raised_about(told: dict[str, Any]) -> None:
    done = told["raise"]
    assert done["launches"] == 0
    assert done["error"].startswith(
        f"WorkspaceOverflowError: ws_guard: {DECODE} would overflow workspace ws0: 12,288 rows"
    )
    assert "it has 1,073,741,824: " in done["error"]
    assert done["events"] == [[DECODE, OVERFLOW, "raised", 1]]
    assert (done["names"], done["sizes"]) == (["ws0"], {"ws0": 1024 * MIB})


def test_one_that_is_too_small_is_split_within(told: dict[str, Any]) -> None:
    # 1 GiB holds 8,120 rows in layout B, 8,184 in C: two pieces, where 394 MiB would take four.
    done = told["split"]
    assert (done["error"], done["launches"], done["batch"]) == ("", 2, 6144)
    assert done["offsets"] == offsets(told, 6144)
    assert done["events"] == [[DECODE, OVERFLOW, "split", 1]]
    assert done["probe_errors"] == 0


def test_upstream_hands_over_a_smaller_buffer_than_it_says(told: dict[str, Any]) -> None:
    """`BatchPrefillWithPagedKVCacheWrapper` passes its integers, and the workspace's size."""
    warning = (
        "ws0: the call says 413,138,944 bytes, its buffer has 8,388,608: slabs carved behind its "
        "end overwrite other memory, and nobody checks. Pass the buffer that the size belongs to"
    )
    assert told["prefill wrapper"]["warnings"] == [warning]
    assert told["context"]["warnings"] == []
