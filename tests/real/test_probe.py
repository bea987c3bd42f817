"""The probe under FlashInfer's own Python and its own launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flashinfer_calls import MIB, PUBLIC_CALLS
from native_modules import DECODE
from probe_calls import Refused, Report, Seen
from public_calls import cases

from ws_guard.board import OVERFLOW, OVERRUN, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def told(release: str, report_of: Callable[..., dict[str, Any]]) -> Report:
    """What `probe_calls.py` reports under one release."""
    found = report_of(release, "probe_calls")
    found["seen"] = [Seen(**each) for each in found["seen"]]
    found["refused"] = Refused(**found["refused"])
    return Report(**found)


def test_every_public_call_is_told_as_it_was_launched(told: Report) -> None:
    assert [each.told for each in told.seen] == [each.made for each in told.seen]
    assert {each.call for each in told.seen} == set(PUBLIC_CALLS)
    # All cases in an aligned workspace, those of no wrapper in a misaligned one as well.
    free = [name for name, _ in cases() if "wrapper" not in name]
    assert len(told.seen) == len(cases()) + len(free) == 28 + 22
    assert {each.made["address_mod_16"] for each in told.seen} == {0, 8}
    assert (told.contract, told.probe_errors, told.problems) == ("verified", 0, [])


def test_slabs_of_vllms_call_stand_where_arithmetic_puts_them(told: Report) -> None:
    asked = {"batch": 24, "heads": 32, "q_len": 1, "lse": True, "address_mod_16": 0}.items()
    (seen,) = (s for s in told.seen if s.call == "sparse_mla" and s.made.items() >= asked)
    # 8 bytes per head and row, rows rounded up to 256 query tokens; a guard of 1 MiB.
    stats = 8 * 32 * 24 * 256 + MIB
    counter = 8192 * 256 * 4
    if told.layout == "B":
        offsets = {"counter": 0, "softmax_stats": counter, "scratch": counter + stats}
    else:
        offsets = {"softmax_stats": 0, "scratch": stats}
    assert seen.told["offsets"] == offsets


def test_refusal_passes_unchanged_and_is_counted_once(told: Report) -> None:
    refused = told.refused
    # 8 bytes x 64 heads x 12,288 rows x 256 query tokens, a guard of 1 MiB.
    assert f"size {8 * 64 * 12_288 * 256 + MIB} and alignment 16" in refused.under_probe
    assert refused.under_probe == refused.bare
    assert refused.frames == refused.bare_frames
    assert "tvm_ffi" in refused.frames[-1]
    assert refused.events == [[DECODE, OVERFLOW, "observed", 1]]
    assert refused.stamped
    assert refused.last_outcome == Outcome.OVERFLOW


def test_overrun_counts_where_the_kv_is_long_enough(told: Report) -> None:
    assert told.short_kv == []
    assert told.long_kv == [[DECODE, OVERRUN, "observed", 1]]


def test_autotuner_is_no_traffic(told: Report) -> None:
    # Two tuning calls, the second refused; one call of the first shape afterwards.
    assert told.tuning == {"counts": [[0, 1], [1, 1]], "events": [], "errors": 0}


def test_other_backends_leave_no_trace(told: Report) -> None:
    (built,) = told.elsewhere["built"]
    assert built.startswith("batch_decode_with_kv_cache")
    assert "MissingJITCacheError" in told.elsewhere["refused"][1]
    assert len(told.elsewhere["refused"]) == 4
    assert told.elsewhere["rows"] == 0


def test_uninstall_restores_the_door(told: Report) -> None:
    assert told.restored
