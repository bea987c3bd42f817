"""Which calls are harmless, refused, or overrun, and how each is counted."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from native_calls import DECODE, MIB, NO_FRONT, Told, sparse_call
from slot_views import ReadSlot, ReadSlots

from ws_guard.board import OVERFLOW, OVERRUN, Outcome, SlotView
from ws_guard.board.format import COUNT_EAGER, EXACT_ROWS, SUM_EAGER
from ws_guard.probe.calls import Handling, Met, NativeCall
from ws_guard.probe.graphs import Graphs
from ws_guard.probe.ledger import Ledger
from ws_guard.probe.parts import Parts
from ws_guard.sizing import OPS, HeadDims

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.probe.recorder import Recorder

    RecorderOf = Callable[[str], Recorder]

OP = list(OPS).index("decode")


def meet(ledger: Ledger, call: NativeCall) -> Handling | None:
    """What the hot path does with a call that it cannot count by itself."""
    workspace = torch.empty(call.workspace_bytes, dtype=torch.uint8, device="meta")
    tokens = call.sum_q if ledger.per_token else 0
    key = (*call[:6], call.workspace_address, call.dims, tokens)
    like = (call.batch, *[None] * 7)
    address, size = call.workspace_address, call.workspace_bytes
    met = Met(key, like, NO_FRONT, call.batch, call.lse, workspace, address, size, (), Told(call))
    return ledger.meet(met)


def is_handled(ledger: Ledger, call: NativeCall) -> bool:
    """Whether a call is not simply made as it came: by default, because it will be refused."""
    return meet(ledger, call) is not None


def outcomes(slot: SlotView) -> list[int]:
    return [call.outcome for call in slot.calls]


def test_harmless_shape_is_left_to_the_hot_path_after_its_first_calls(
    recorder: Recorder, slot: ReadSlot
) -> None:
    """How a workspace is used shows in the first ones."""
    ledger = Ledger(recorder, DECODE)
    for count in (1, 2, 3):
        assert not is_handled(ledger, sparse_call(16, 64 * MIB))
        assert (count, ledger.known) == (count, {})
    meet(ledger, sparse_call(16, 64 * MIB))
    (known,) = ledger.known.values()
    words, word, times = known.run[8:]
    words[word] += 1
    times[OP] = time.monotonic()
    (told,) = slot().rows
    assert (told.eager, told.shape.batch, told.shape.top_k) == (5, 16, 2048)
    assert known.sum_word == 0
    # All five are one run.
    assert outcomes(slot()) == [Outcome.EAGER]


def test_a_capture_may_begin_while_the_end_of_tuning_is_told(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hot path, which does not know of graphs, must not come back into the capture."""
    parts = Parts.of(recorder)
    ledger, graph = Ledger(recorder, DECODE, parts), type("Graph", (), {})()
    for _ in range(8):
        meet(ledger, sparse_call(128, 394 * MIB))
    assert ledger.known
    parts.tuning._note(True)
    other = threading.Thread(target=parts.graphs.begin_capture, args=(graph,))

    def is_asked(graphs: Graphs) -> bool:
        answer = bool(graphs._captures)
        if other.ident is None:  # the other thread comes between question and answer, if it can
            other.start()
            other.join(0.2)
        return answer

    monkeypatch.setattr(Graphs, "capturing", property(is_asked))
    parts.tuning._note(False)
    other.join()
    assert parts.graphs.capturing
    assert ledger.known == {}


def test_shape_is_written_once(recorder: Recorder, slot: ReadSlot) -> None:
    ledger = Ledger(recorder, DECODE)
    for _ in range(5):
        meet(ledger, sparse_call(16, 64 * MIB))
    assert [row.eager for row in slot().rows] == [5]


def test_refused_shape_never_reaches_the_hot_path(recorder: Recorder, slot: ReadSlot) -> None:
    """Layout B, 394 MiB: 3,080 rows fit to the byte, 3,081 are refused."""
    ledger = Ledger(recorder, DECODE)
    before = time.time_ns()
    for batch, handled in ((3080, False), (3081, True)):
        call = sparse_call(batch, 394 * MIB)
        assert [is_handled(ledger, call) for _ in range(5)] == [handled] * 5
    assert [known.run[0] for known in ledger.known.values()] == [3080]
    told = slot()
    assert told.events == {(OP, OVERFLOW, "observed"): 5}
    assert before <= told.last_overflow_ns <= time.time_ns()
    assert told.last_overrun_ns == 0
    # Calls that went well are a run; each that did not is told by itself.
    assert outcomes(told) == [Outcome.EAGER, *[Outcome.OVERFLOW] * 5]
    assert [(row.shape.batch, row.eager) for row in told.rows] == [(3080, 5), (3081, 5)]


@pytest.mark.parametrize(
    ("max_kv_len", "certain"), [(65_536, True), (2048, True), (100, False), (None, True)]
)
def test_overrun_is_certain_only_over_long_kv(
    max_kv_len: int | None, certain: bool, recorder_of: RecorderOf, slot: ReadSlot
) -> None:
    """Layout C, 12 MiB, 74 rows: 9,775,104 bytes of scratch, and room for 1,835,008."""
    assert 12 * MIB - (8 * 64 * 74 * 256 + MIB) == 1_835_008
    ledger = Ledger(recorder_of("C"), DECODE)
    assert not is_handled(ledger, sparse_call(74, 12 * MIB, max_kv_len=max_kv_len))
    told = slot()
    assert told.events == ({(OP, OVERRUN, "observed"): 1} if certain else {})
    assert (told.last_overrun_ns > 0) is certain
    assert outcomes(told) == [Outcome.OVERRUN if certain else Outcome.EAGER]


def test_overrun_is_judged_call_by_call(recorder_of: RecorderOf, slot: ReadSlot) -> None:
    ledger = Ledger(recorder_of("C"), DECODE)
    for max_kv_len in (100, 2048, 100):
        for _ in range(5):
            meet(ledger, sparse_call(74, 12 * MIB, max_kv_len=max_kv_len))
    assert outcomes(slot()) == [Outcome.EAGER, *[Outcome.OVERRUN] * 5, Outcome.EAGER]
    assert ledger.known == {}


def test_bound_on_scratch_is_no_overrun(recorder_of: RecorderOf, slot: ReadSlot) -> None:
    """Dense MLA may write 9,775,104 bytes or less: not known, so not counted."""
    ledger = Ledger(recorder_of("C"), DECODE)
    meet(ledger, sparse_call(74, 12 * MIB, dims=HeadDims(576, 512, 0)))
    assert slot().events == {}


def test_batch_above_half_the_sms_does_not_overrun(recorder_of: RecorderOf, slot: ReadSlot) -> None:
    ledger = Ledger(recorder_of("C"), DECODE)
    # Stats of 75 rows: 8 * 64 * 75 * 256 + 1 MiB = 10,878,976 of 12,582,912.
    for _ in range(4):
        meet(ledger, sparse_call(75, 12 * MIB))
    assert slot().events == {}
    assert len(ledger.known) == 1


def test_short_external_counter_is_refused(recorder_of: RecorderOf, slot: ReadSlot) -> None:
    ledger = Ledger(recorder_of("C"), DECODE)
    # One int32 per batch x heads, at least one per SM, rounded up to 8: 4 * 1,024.
    assert is_handled(ledger, sparse_call(16, 64 * MIB, counter_buffer_bytes=4095))
    # Each call brings a counter of its own.
    assert not is_handled(ledger, sparse_call(16, 64 * MIB, counter_buffer_bytes=4096))
    assert slot().events == {(OP, OVERFLOW, "observed"): 1}


def test_tokens_decide_in_layout_a_ragged(recorder_of: RecorderOf, slot: ReadSlot) -> None:
    """8 bytes x 64 heads per token behind a counter of 8 MiB: 2 MiB take 4,096 tokens."""
    ledger = Ledger(recorder_of("A"), OPS["ragged"])
    assert ledger.per_token
    calls = [sparse_call(8, 10 * MIB, lse=False, sum_q=sum_q) for sum_q in (4096, 4097)]
    assert [is_handled(ledger, call) for call in calls] == [False, True]
    assert [row.shape.sum_q for row in slot().rows] == [4096, 4097]
    assert not Ledger(recorder_of("B"), OPS["ragged"]).per_token


@pytest.mark.parametrize("workspace_bytes", [64 * MIB, MIB], ids=["fits", "refused"])
def test_tuning_is_counted_apart(workspace_bytes: int, recorder: Recorder, slot: ReadSlot) -> None:
    parts = Parts.of(recorder)
    ledger = Ledger(recorder, DECODE, parts)
    parts.tuning.active = True
    for _ in range(5):
        assert not is_handled(ledger, sparse_call(16, workspace_bytes))
    assert ledger.known == {}
    told = slot()
    assert [(row.eager, row.tuning) for row in told.rows] == [(0, 5)]
    assert (told.events, told.last_overflow_ns) == ({}, 0)
    assert outcomes(told) == [Outcome.TUNING]


def test_shapes_beyond_the_table_keep_exact_sums(recorder: Recorder, slot: ReadSlot) -> None:
    ledger = Ledger(recorder, DECODE)
    batches = range(1, EXACT_ROWS + 301)
    for batch in batches:
        meet(ledger, sparse_call(batch, 1 << 40))
    # The hot path counts folded shapes as well, by their row.
    last = next(reversed(ledger.known.values()))
    words, word, _ = last.run[8:]
    words[word] += 1
    words[last.sum_word] += batches[-1]
    told = slot()
    (folded,) = (row for row in told.rows if row.folded)
    assert word - COUNT_EAGER == last.sum_word - SUM_EAGER
    assert folded.eager == 300 + 1
    assert folded.sum_eager == sum(batches[-300:]) + batches[-1]
    # The shape that a folded row shows is the worst of them.
    assert folded.shape.batch == batches[-1]
    assert sum(row.eager for row in told.rows) == len(batches) + 1


def test_new_slot_begins_with_no_shapes(recorder: Recorder, slots: ReadSlots) -> None:
    ledger = Ledger(recorder, DECODE)
    calls = [sparse_call(16, 64 * MIB)] * 4 + [sparse_call(3081, 394 * MIB)]
    for call in calls:
        meet(ledger, call)
    assert len(ledger.known) == 1
    recorder.forget_slot()
    assert ledger.known == {}
    for call in calls:
        meet(ledger, call)
    told = slots()
    assert sorted(each.alive for each in told) == [False, True]
    for each in told:
        assert [(row.shape.batch, row.eager) for row in each.rows] == [(16, 4), (3081, 1)]
