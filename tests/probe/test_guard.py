"""Observe, raise and split around one op: what is called, what is raised, what is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from native_calls import (
    DECODE,
    MIB,
    REFUSAL,
    REFUSED_BATCH,
    Watched,
    decode_arguments,
    watch,
    workspace,
)
from slot_views import ReadSlot, eager

from ws_guard import WorkspaceOverflowError
from ws_guard.board import OVERFLOW, OVERRUN, Outcome

if TYPE_CHECKING:
    from ws_guard.probe.recorder import Recorder


class Spy:
    """A native function that keeps what it was called with, and gives what it is told to."""

    def __init__(self, *answers: object) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._answers = list(answers)

    def __call__(self, *args: Any) -> object:
        self.seen.append(args)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def never(*_args: object) -> NoReturn:
    raise AssertionError("the native function was called")


# -- raise -----------------------------------------------------------------------------------------


def test_raised_before_the_native_call(recorder: Recorder, slot: ReadSlot) -> None:
    watched = watch(recorder, "raise")
    op, buffer = watched.over(never), workspace()
    for count in (1, 2, 3):
        with pytest.raises(WorkspaceOverflowError) as raised:
            op(*decode_arguments(REFUSED_BATCH, buffer))
        assert (raised.value.op, raised.value.batch) == (DECODE, REFUSED_BATCH)
        assert slot().events == {(0, OVERFLOW, "raised"): count}
    told = slot()
    assert [call.outcome for call in told.calls] == [Outcome.RAISED] * 3
    assert (told.probe_errors, eager(told)) == (0, 3)
    assert told.last_overflow_ns > 0


def test_worker_lives_on_after_it(recorder: Recorder, slot: ReadSlot) -> None:
    watched, spy = watch(recorder, "raise"), Spy()
    op, buffer = watched.over(spy), workspace()
    for _ in range(10):
        op(*decode_arguments(16, buffer))
        with pytest.raises(WorkspaceOverflowError):
            op(*decode_arguments(REFUSED_BATCH, buffer))
    assert len(spy.seen) == 10
    assert [(row.shape.batch, row.eager) for row in slot().rows] == [(16, 10), (REFUSED_BATCH, 10)]
    assert slot().events == {(0, OVERFLOW, "raised"): 10}
    # Each one that was raised is told by itself, and so is each run between two of them.
    assert [call.outcome for call in slot().calls] == [Outcome.EAGER, Outcome.RAISED] * 10


@pytest.mark.parametrize("max_kv_len", [65_536, 100])
def test_certain_overrun_is_raised_and_a_doubtful_one_goes_ahead(
    max_kv_len: int, recorder: Recorder, slot: ReadSlot
) -> None:
    """74 rows in 12 MiB: what is left after 8 MiB of counters is less than their scratch."""
    watched, spy = watch(recorder, "raise"), Spy()
    arguments = decode_arguments(74, workspace(12 * MIB), lse=False)
    arguments[watched.at("max_kv_len")] = max_kv_len
    op = watched.over(spy)
    if max_kv_len == 100:
        op(*arguments)
        assert (len(spy.seen), slot().events) == (1, {})
        return
    with pytest.raises(WorkspaceOverflowError) as raised:
        op(*arguments)
    assert raised.value.slab == "trtllm_gen_scratch_workspace"
    assert (raised.value.slab_bytes, raised.value.available_bytes) == (9_775_104, 4 * MIB)
    assert slot().events == {(0, OVERRUN, "raised"): 1}
    assert (spy.seen, slot().last_overrun_ns > 0) == ([], True)


def test_sites_name_and_plan_are_in_the_error(recorder: Recorder) -> None:
    recorder.site_of = lambda _address, _op: "sparse_decode"
    plan = {
        "workspace": "sparse_decode",
        "recommended_workspace_bytes": 2_561_671_168,
        "env": {"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "2561671168"},
    }
    recorder.describe(planned=[plan])
    with pytest.raises(WorkspaceOverflowError) as raised:
        watch(recorder, "raise").over(never)(*decode_arguments(REFUSED_BATCH, workspace()))
    assert raised.value.workspace == "sparse_decode"
    assert raised.value.remedy == "set VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=2561671168"


@pytest.mark.parametrize("action", ["observe", "raise", "split"])
def test_tuner_gets_the_refusals_that_it_swallows(
    action: str, recorder: Recorder, slot: ReadSlot
) -> None:
    watched, spy = watch(recorder, action), Spy(RuntimeError(REFUSAL))
    watched.tuning._note(True)
    with pytest.raises(RuntimeError, match="Buffer overflow"):
        watched.over(spy)(*decode_arguments(REFUSED_BATCH, workspace()))
    told = slot()
    assert len(spy.seen) == 1
    assert (told.events, told.last_overflow_ns, told.probe_errors) == ({}, 0, 0)
    assert [(row.eager, row.tuning) for row in told.rows] == [(0, 1)]


@pytest.mark.parametrize(("action", "called"), [("observe", 1), ("raise", 0), ("split", 0)])
def test_overrun_is_kept_from_the_tuner_without_an_event(
    action: str, called: int, recorder: Recorder, slot: ReadSlot
) -> None:
    """A synthetic call would corrupt memory as a real one does."""
    watched, spy = watch(recorder, action), Spy()
    watched.tuning._note(True)
    op, arguments = watched.over(spy), decode_arguments(74, workspace(12 * MIB), lse=False)
    if called:
        op(*arguments)
    else:
        with pytest.raises(WorkspaceOverflowError):
            op(*arguments)
    assert len(spy.seen) == called
    assert (slot().events, slot().last_overrun_ns, slot().probe_errors) == ({}, 0, 0)


# -- split -----------------------------------------------------------------------------------------


def test_pieces_are_called_in_order_and_the_last_one_answers(
    recorder: Recorder, slot: ReadSlot
) -> None:
    watched, spy = watch(recorder, "split"), Spy("first", "second", "third", "last")
    op = watched.over(spy)
    assert op(*decode_arguments(REFUSED_BATCH, workspace())) == "last"
    assert [args[watched.at("batch_size")] for args in spy.seen] == [3_072] * 4
    assert [args[watched.at("enable_pdl")] for args in spy.seen] == [False] * 4
    told = slot()
    # One native call was made, by the engine.
    assert (eager(told), told.probe_errors) == (1, 0)
    assert told.events == {(0, OVERFLOW, "split"): 1}
    assert [call.outcome for call in told.calls] == [Outcome.SPLIT]


def test_what_cannot_be_split_is_raised_with_the_reason(recorder: Recorder, slot: ReadSlot) -> None:
    watched = watch(recorder, "split")
    arguments = decode_arguments(REFUSED_BATCH, workspace())
    arguments[watched.at("cum_seq_lens_q")] = torch.empty(REFUSED_BATCH + 1, device="meta")
    with pytest.raises(WorkspaceOverflowError, match=r"\(not split: its rows have query lengths"):
        watched.over(never)(*arguments)
    assert slot().events == {(0, OVERFLOW, "raised"): 1}
    assert slot().probe_errors == 0


@pytest.mark.parametrize("error", [ValueError("no such dtype"), RuntimeError(REFUSAL)], ids=repr)
def test_error_of_a_piece_is_the_native_one(
    error: Exception, recorder: Recorder, slot: ReadSlot
) -> None:
    watched, spy = watch(recorder, "split"), Spy(None, error)
    with pytest.raises(type(error)) as raised:
        watched.over(spy)(*decode_arguments(REFUSED_BATCH, workspace()))
    assert raised.value is error
    assert len(spy.seen) == 2
    # A piece that is refused was not foreseen to be.
    refused = isinstance(error, RuntimeError)
    events = {(0, OVERFLOW, "split"): 1} | ({(0, OVERFLOW, "observed"): 1} if refused else {})
    assert (slot().events, slot().probe_errors) == (events, int(refused))


class Mla(NamedTuple):
    """A decode of MLA with real values: `q_len` tokens a row, sparse or over pages."""

    batch: int
    q_len: int
    sparse: bool
    heads: int = 16
    tokens: int = 64

    def arguments(self, watched: Watched, buffer: torch.Tensor) -> list[Any]:
        generator = torch.Generator().manual_seed(7)
        pages, page, rows = 32, 64, self.batch * self.q_len
        cache = torch.randn(pages, 1, page, 576, generator=generator)
        query = torch.randn(rows, self.heads, 576, generator=generator)
        if self.sparse:
            size = (self.batch, self.q_len, self.tokens)
            table = torch.randint(0, pages * page, size, generator=generator)
        else:
            table = torch.randint(0, pages, (self.batch, 1), generator=generator)
        lengths = torch.randint(self.q_len, self.tokens + 1, (self.batch,), generator=generator)
        # The reference gathers as many tokens as the longest row has: as many in every piece.
        lengths[::50] = self.tokens
        arguments = decode_arguments(
            self.batch, buffer, heads=self.heads, top_k=self.tokens if self.sparse else 0
        )
        named: dict[str, Any] = {
            "out": torch.zeros(self.batch, self.q_len, self.heads, 512),
            "query": query,
            "key_cache": cache,
            "value_cache": cache,
            "block_tables": table.int(),
            "seq_lens": lengths.int(),
            "lse": torch.zeros(rows, self.heads),
            "max_q_len": self.q_len,
            "bmm1_scale": 576**-0.5,
        }
        for name, value in named.items():
            arguments[watched.at(name)] = value
        return arguments


@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_split_is_bitwise_what_the_whole_call_is(
    q_len: int, sparse: bool, recorder: Recorder, slot: ReadSlot
) -> None:
    """Reference attention: 300 rows whole in a workspace that holds them, cut in one of 100."""
    watched = watch(recorder, "split")
    step = Mla(300, q_len, sparse)
    # 8 * 16 * 256 bytes of statistics a row, behind at most 8 MiB of counters and 1 MiB.
    head = 1 * MIB + (8 * MIB if recorder.layout.name == "B" else 0)
    sizes = [head + 32_768 * rows for rows in (300, 100)]
    calls: list[int] = []
    native = watched.reference()

    def counted(*args: Any) -> object:
        calls.append(args[watched.at("batch_size")])
        return native(*args)

    results = []
    for size in sizes:
        arguments = step.arguments(watched, workspace(size))
        watched.over(counted)(*arguments)
        results.append([arguments[watched.at(name)] for name in ("out", "lse")])
    assert calls == [300, 100, 100, 100]
    assert slot().events == {(0, OVERFLOW, "split"): 1}
    (out, lse), (split_out, split_lse) = results
    assert torch.isfinite(lse).all()
    assert out.abs().amax(dim=(1, 2, 3)).min() > 0
    assert torch.equal(split_out, out)
    assert torch.equal(split_lse, lse)
