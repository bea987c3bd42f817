"""What a recorder tells in its slot: the document, workspaces by name, errors."""

from __future__ import annotations

import os

import pytest
from slot_views import ReadSlot

from ws_guard.board import MAX_WORKSPACES
from ws_guard.probe.recorder import Recorder, is_refusal
from ws_guard.sizing import OPS

OVERFLOW_TEXT = "Buffer overflow when allocating memory for"


def test_document_is_published_and_changed(recorder: Recorder, slot: ReadSlot) -> None:
    assert slot().document == {"engine": "0", "ops": list(OPS.values()), "workspaces": []}
    recorder.describe(engine="1", planned=[])
    assert slot().document.items() >= {"engine": "1", "planned": []}.items()


def test_document_that_is_too_long_leaves_the_old_one(
    recorder: Recorder, slot: ReadSlot, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        recorder.describe(reason="x" * 20_000)
    assert "reason" not in slot().document
    (line,) = caplog.messages
    assert "bytes" in line


def test_workspaces_are_numbered_by_first_sight(recorder: Recorder, slot: ReadSlot) -> None:
    addresses = [4096 * n for n in (7, 3, 5)]
    assert [recorder.workspace_number(address) for address in addresses * 2] == [0, 1, 2] * 2
    assert slot().document["workspaces"] == ["ws0", "ws1", "ws2"]


def test_workspaces_beyond_the_eighth_are_other(recorder: Recorder, slot: ReadSlot) -> None:
    numbers = [recorder.workspace_number(4096 * n) for n in range(11)]
    assert numbers == [0, 1, 2, 3, 4, 5, 6, 7, *[MAX_WORKSPACES] * 3]
    assert len(slot().document["workspaces"]) == MAX_WORKSPACES


def test_workspaces_are_named_by_their_site(recorder: Recorder, slot: ReadSlot) -> None:
    sites = {(4096, "decode"): "dense_decode", (4096, "context"): "dense_prefill"}
    recorder.site_of = lambda address, op: sites.get((address, op), "")
    numbers = [
        recorder.workspace_number(address, op)
        for address, op in ((4096, "decode"), (8192, "decode"), (4096, "context"), (4096, "decode"))
    ]
    assert numbers == [0, 1, 2, 0]
    assert slot().document["workspaces"] == ["dense_decode", "ws1", "dense_prefill"]


def test_buffers_of_one_site_are_never_merged(recorder: Recorder, slot: ReadSlot) -> None:
    recorder.site_of = lambda _address, _op: "ragged"
    assert [recorder.workspace_number(4096 * n, "r") for n in (1, 2, 3, 2)] == [0, 1, 2, 1]
    assert slot().document["workspaces"] == ["ragged", "ragged.1", "ragged.2"]


def test_site_that_cannot_be_told_leaves_a_number(
    recorder: Recorder, slot: ReadSlot, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_address: int, _op: str) -> str:
        raise LookupError("moved")

    recorder.site_of = fails
    assert [recorder.workspace_number(4096 * n, "d") for n in (1, 2)] == [0, 1]
    assert slot().document["workspaces"] == ["ws0", "ws1"]
    assert len(caplog.messages) == 1


def test_each_kind_of_error_is_logged_once_and_counted_each_time(
    recorder: Recorder, slot: ReadSlot, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        recorder.stumbled(ValueError("no such shape"))
        recorder.stumbled("a word")
    assert slot().probe_errors == 6
    assert caplog.messages == [
        f"ws_guard[{os.getpid()}]: ValueError: no such shape",
        f"ws_guard[{os.getpid()}]: a word",
    ]


def test_endless_kinds_of_errors_do_not_flood_the_log(
    recorder: Recorder, slot: ReadSlot, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(1000):
        recorder.stumbled(f"{n} is wrong")
    assert slot().probe_errors == 1000
    assert len(caplog.messages) == 100


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (RuntimeError(f"{OVERFLOW_TEXT} trtllm_gen_counter_workspace with size 8388608"), 1),
        (RuntimeError(f"{OVERFLOW_TEXT} batch_prefill_tmp_v with size 8388608"), 0),
        (ValueError(f"{OVERFLOW_TEXT} trtllm_gen_counter_workspace with size 8388608"), 0),
        (RuntimeError("(static_cast<size_t>(multi_ctas_kv_counter_size) >= counter_bytes)"), 1),
        (RuntimeError("CUDA out of memory"), 0),
    ],
)
def test_refusals_are_told_from_other_errors(error: Exception, refusal: int) -> None:
    assert is_refusal(error) == bool(refusal)
