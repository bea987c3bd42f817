"""Refusals: foreseen, not foreseen, taken back, and within the autotuner."""

from __future__ import annotations

from typing import NoReturn

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from native_calls import (
    MIB,
    REFUSAL,
    REFUSED_BATCH,
    Watched,
    decode_arguments,
    workspace,
)
from slot_views import ReadSlot

from ws_guard.board import OVERFLOW, Outcome


def test_refusal_is_on_the_board_before_the_call(watched: Watched, slot: ReadSlot) -> None:
    """Should the process die of it, the board has it."""
    seen = []

    def native(*_args: object) -> NoReturn:
        seen.append(slot())
        raise RuntimeError(REFUSAL)

    op = watched.over(native)
    for count in (1, 2):
        with pytest.raises(RuntimeError):
            op(*decode_arguments(REFUSED_BATCH, workspace()))
        for told in (seen.pop(), slot()):
            assert told.events == {(0, OVERFLOW, "observed"): count}
            assert told.calls[-1].outcome == Outcome.OVERFLOW
    assert slot().probe_errors == 0


def test_reference_refusals_are_foreseen(watched: Watched, slot: ReadSlot) -> None:
    op = watched.over(watched.reference())
    buffer = torch.empty(394 * MIB, dtype=torch.uint8, device="meta")

    def refuses(batch: int) -> bool:
        try:
            op(*decode_arguments(batch, buffer))
        except RuntimeError:
            return True
        return False

    refused = sum(map(refuses, [3079, 3080, 3081, 3143, 3144, 3145, 3146]))
    # Layout B accepts 3,080 rows, layout C 3,144.
    assert watched.contract.layout is not None
    assert refused == {"B": 5, "C": 2}[watched.contract.layout.name]
    assert list(slot().events.values()) == [refused]
    assert slot().probe_errors == 0


def test_foreseen_refusal_that_does_not_come_is_taken_back(
    watched: Watched, slot: ReadSlot, caplog: pytest.LogCaptureFixture
) -> None:
    op = watched.over(lambda *_args: "computed")
    for count in (1, 2):
        assert op(*decode_arguments(REFUSED_BATCH, workspace())) == "computed"
        told = slot()
        assert (told.events, told.last_overflow_ns, told.probe_errors) == ({}, 0, count)
    (line,) = caplog.messages
    assert "was foreseen to be refused and was not" in line


def test_one_taken_back_leaves_the_others(watched: Watched, slot: ReadSlot) -> None:
    answers = iter([RuntimeError(REFUSAL), None])

    def native(*_args: object) -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    op, arguments = watched.over(native), decode_arguments(REFUSED_BATCH, workspace())
    with pytest.raises(RuntimeError):
        op(*arguments)
    op(*arguments)
    assert list(slot().events.values()) == [1]
    assert slot().last_overflow_ns > 0


def test_foreseen_refusal_that_another_error_forestalls_is_taken_back(
    watched: Watched, slot: ReadSlot
) -> None:
    def native(*_args: object) -> NoReturn:
        raise ValueError("no such dtype")

    with pytest.raises(ValueError, match="no such dtype"):
        watched.over(native)(*decode_arguments(REFUSED_BATCH, workspace()))
    assert (slot().events, slot().last_overflow_ns, slot().probe_errors) == ({}, 0, 0)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        (REFUSAL, 1),
        ("Check failed: (static_cast<size_t>(multi_ctas_kv_counter_size) >= counter_bytes)", 1),
        ("CUDA error: an illegal memory access was encountered", 0),
        (REFUSAL.replace("trtllm_gen_softmax_workspace", "batch_prefill_tmp_v"), 0),
    ],
)
def test_refusal_that_was_not_foreseen_is_counted(
    text: str, counted: int, watched: Watched, slot: ReadSlot
) -> None:
    def native(*_args: object) -> NoReturn:
        raise RuntimeError(text)

    with pytest.raises(RuntimeError):
        watched.over(native)(*decode_arguments(16, workspace()))
    assert sum(slot().events.values()) == counted
    assert slot().probe_errors == counted


def test_refusal_within_the_autotuner_is_no_event(watched: Watched, slot: ReadSlot) -> None:
    def native(*_args: object) -> NoReturn:
        raise RuntimeError(REFUSAL)

    watched.tuning._note(True)
    for batch in (16, REFUSED_BATCH):
        with pytest.raises(RuntimeError):
            watched.over(native)(*decode_arguments(batch, workspace()))
    told = slot()
    assert (told.events, told.last_overflow_ns, told.probe_errors) == ({}, 0, 0)
    assert [(row.eager, row.tuning) for row in told.rows] == [(0, 1), (0, 1)]
