"""The check of the plan: the one that knows before the first large step comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from slot_worker import CRASH_PLAN, FIXED_PLAN

from ws_guard.board import Outcome

if TYPE_CHECKING:
    from conftest import Ask, Attach


def test_a_plan_that_does_not_fit_says_what_to_set(attach: Attach, ask: Ask) -> None:
    attach(planned=[CRASH_PLAN])
    state, detail = ask("planned_fits")
    assert state == "fail"
    assert detail == (
        "engine 0 rank 0: ws0: a step of 16,384 rows needs 2,156,920,832 bytes, the workspace has "
        "413,138,944; set VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=2561671168"
    )


def test_without_a_variable_the_size_is_told(attach: Attach, ask: Ask) -> None:
    attach(planned=[CRASH_PLAN | {"env": {}}])
    assert ask("planned_fits")[1].endswith("give the workspace 2,561,671,168 bytes")


def test_a_plan_may_fail_for_another_reason(attach: Attach, ask: Ask) -> None:
    attach(planned=[FIXED_PLAN | {"fits": False, "reasons": ["grid_limit"]}])
    state, detail = ask("planned_fits")
    assert state == "fail"
    assert "grid_limit" in detail
    assert "lower the tokens of a step" in detail


def test_a_plan_that_only_says_that_it_does_not_fit(attach: Attach, ask: Ask) -> None:
    attach(planned=[{"fits": False}])
    assert ask("planned_fits")[0] == "fail"


def test_the_least_margin_is_a_setting(attach: Attach, ask: Ask) -> None:
    attach(planned=[FIXED_PLAN])
    # 2,561,671,168 - 2,156,920,832 = 404,750,336 bytes are left.
    assert ask("planned_fits", WS_GUARD_MIN_MARGIN_BYTES="404750336")[0] == "ok"
    state, detail = ask("planned_fits", WS_GUARD_MIN_MARGIN_BYTES="404750337")
    assert state == "fail"
    assert "leaves 404,750,336 bytes, WS_GUARD_MIN_MARGIN_BYTES asks 404,750,337" in detail


def test_planned_fits_is_unknown_until_every_worker_has_told(attach: Attach, ask: Ask) -> None:
    first = attach(rank="0")
    assert ask("planned_fits")[0] == "unknown"
    first.describe(planned=[FIXED_PLAN])
    second = attach(rank="1")
    assert ask("planned_fits")[0] == "unknown"
    second.describe(planned=[FIXED_PLAN])
    assert ask("planned_fits") == ("ok", "the worst planned step fits")


def test_a_call_that_no_plan_foresaw_leaves_it_unknown(attach: Attach, ask: Ask) -> None:
    worker = attach(planned=[FIXED_PLAN])
    worker.call(5)
    assert ask("planned_fits")[0] == "ok"
    worker.call(5, workspace=1)
    expected = "engine 0 rank 0: ws1: it was called, its plan is not known"
    assert ask("planned_fits") == ("unknown", expected)


@pytest.mark.parametrize("mode", ["eager", "tuning"])
def test_native_calls_of_an_engine_that_planned_none(attach: Attach, ask: Ask, mode: str) -> None:
    worker = attach(planned=[])
    worker.call(5, mode=mode, outcome=Outcome.TUNING if mode == "tuning" else Outcome.EAGER)
    expected = "engine 0 rank 0: native calls were seen, its plan knows no trtllm-gen workspace"
    assert ask("planned_fits") == ("unknown", expected)


@pytest.mark.parametrize("missing", ["need_bytes", "workspace_bytes"])
def test_a_plan_without_its_numbers_is_no_plan(attach: Attach, ask: Ask, missing: str) -> None:
    attach(planned=[FIXED_PLAN | {missing: None}])
    state, detail = ask("planned_fits")
    assert state == "unknown"
    assert detail.endswith("ws0: its plan lacks the need or the size of the workspace")


def test_a_plan_beyond_its_threshold_fails_whatever_it_says(attach: Attach, ask: Ask) -> None:
    attach(planned=[FIXED_PLAN | {"overflow_threshold_batch": 16_383}])
    state, detail = ask("planned_fits")
    assert state == "fail"
    assert "a step of 16,384 rows is more than the 16,383 that the launcher accepts" in detail


def test_an_engine_without_a_workspace_fits(attach: Attach, ask: Ask) -> None:
    attach(planned=[])
    assert ask("planned_fits") == ("ok", "the engine uses no trtllm-gen workspace")
