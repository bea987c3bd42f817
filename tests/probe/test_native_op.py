"""The wrapper around a native op: it counts, and is otherwise not there."""

from __future__ import annotations

import time
import traceback
from typing import Any, NoReturn

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
    nothing,
    workspace,
)
from slot_views import ReadSlot, eager

from ws_guard.board import Outcome
from ws_guard.board.format import RING_RUNS


def test_arguments_and_result_pass_through(watched: Watched) -> None:
    result, seen = object(), []
    op = watched.over(lambda *args: (seen.append(args), result)[1])
    arguments = decode_arguments(16, workspace())
    for _ in range(3):
        assert op(*arguments) is result
    assert len(seen) == 3
    assert all(given is got for args in seen for given, got in zip(arguments, args, strict=True))


@pytest.mark.parametrize("batch", [16, REFUSED_BATCH], ids=["known", "foreseen"])
@pytest.mark.parametrize(
    "error", [RuntimeError(REFUSAL), ValueError("no such dtype"), KeyboardInterrupt()], ids=repr
)
def test_native_error_is_the_same_object(
    batch: int, error: BaseException, watched: Watched
) -> None:
    def native(*_args: object) -> NoReturn:
        raise error

    error.__traceback__ = error.__context__ = None
    with pytest.raises(type(error)) as raised:
        watched.over(native)(*decode_arguments(batch, workspace()))
    assert raised.value is error
    assert error.__context__ is None
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[-1] == "native"


def test_computed_attention_is_that_without_the_probe(watched: Watched) -> None:
    generator = torch.Generator().manual_seed(7)
    arguments = decode_arguments(3, workspace(64 * MIB), heads=16)
    cache = torch.randn(16, 1, 64, 576, generator=generator)
    real = {
        "query": torch.randn(3, 16, 576, generator=generator),
        "key_cache": cache,
        "value_cache": cache,
        "block_tables": torch.randint(0, 1024, (3, 1, 2048), generator=generator).int(),
        "seq_lens": torch.full((3,), 2048, dtype=torch.int32),
    }
    arguments[watched.at("bmm1_scale")] = 576**-0.5
    for name, tensor in real.items():
        arguments[watched.at(name)] = tensor
    results = []
    for op in (watched.reference(), watched.over(watched.reference())):
        out, lse = torch.zeros(3, 1, 16, 512), torch.zeros(3, 16)
        arguments[watched.at("out")], arguments[watched.at("lse")] = out, lse
        op(*arguments)
        results.append((out, lse))
    (out, lse), (probed_out, probed_lse) = results
    assert out.abs().sum() > 0
    # Not bit by bit: where its tensors happen to lie decides the order in which torch adds up.
    torch.testing.assert_close((probed_out, probed_lse), (out, lse), rtol=1e-3, atol=1e-4)


def test_call_is_counted_with_its_shape(watched: Watched, slot: ReadSlot) -> None:
    buffer = workspace()
    op = watched.over(nothing)
    for _ in range(5):
        op(*decode_arguments(16, buffer))
    (row,) = slot().rows
    shape = row.shape
    assert row.eager == 5
    assert slot().document["ops"][shape.op] == DECODE
    assert (shape.batch, shape.heads, shape.q_len, shape.lse) == (16, 64, 1, True)
    assert (shape.workspace_bytes, shape.address_mod_16) == (394 * MIB, buffer.data_ptr() % 16)
    assert (shape.qk, shape.vo, shape.top_k, shape.sm_count) == (576, 512, 2048, 148)


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 17},
        {"heads": 32},
        {"lse": False},
        {"workspace": workspace(64 * MIB)},
        {"workspace": workspace()},
        {"top_k": 0},
    ],
    ids=["batch", "heads", "lse", "workspace size", "workspace", "top-k"],
)
def test_what_decides_a_carve_tells_shapes_apart(
    change: dict[str, Any], watched: Watched, slot: ReadSlot
) -> None:
    usual = {"batch": 16, "workspace": workspace()}
    op = watched.over(nothing)
    for options in (usual, usual | change) * 10:
        for _ in range(3):
            op(*decode_arguments(**options))
    assert [row.eager for row in slot().rows] == [30, 30]


def test_ring_holds_the_last_runs_in_order(watched: Watched, slot: ReadSlot) -> None:
    """Steps of 5 calls each, as of a model of 5 layers, of three batches in turn."""
    op, buffer = watched.over(nothing), workspace()
    calls = [decode_arguments(batch, buffer) for batch in (1, 2, 3)]
    for n in range(RING_RUNS + 50):
        for _ in range(5):
            op(*calls[n % 3])
    told = slot().calls
    assert [call.shape.batch for call in told] == [1 + n % 3 for n in range(50, RING_RUNS + 50)]
    assert sorted(call.at_ns for call in told) == [call.at_ns for call in told]
    assert eager(slot()) == 5 * (RING_RUNS + 50)


def test_last_call_is_known_to_the_moment(watched: Watched, slot: ReadSlot) -> None:
    """The ring has the run; when its last call was stands in the header."""
    op, arguments = watched.over(nothing), decode_arguments(16, workspace())
    for _ in range(10):
        before = time.time_ns()
        op(*arguments)
        after = time.time_ns()
        (call,) = slot().calls
        # Two clocks, read one after the other at the start, and a float of seconds.
        assert before - 1_000_000 <= call.at_ns <= after + 1_000_000


def test_views_of_one_workspace_are_one_workspace(watched: Watched, slot: ReadSlot) -> None:
    """SGLang makes a view for each call: another tensor object at the same address."""
    op, buffer = watched.over(nothing), workspace()
    for _ in range(10):
        op(*decode_arguments(16, buffer.view(-1)))
    assert [row.eager for row in slot().rows] == [10]
    assert len(slot().calls) == 1


def test_batches_within_one_shape_of_query_are_told_apart(watched: Watched, slot: ReadSlot) -> None:
    """Batch and query length are arguments of their own: only their product shows in the query."""
    op, arguments = watched.over(nothing), decode_arguments(16, workspace())
    for batch, q_len in ((16, 1), (8, 2), (4, 4)) * 10:
        arguments[watched.at("batch_size")] = batch
        arguments[watched.at("max_q_len")] = q_len
        op(*arguments)
    shapes = [(row.shape.batch, row.shape.q_len, row.eager) for row in slot().rows]
    assert shapes == [(16, 1, 10), (8, 2, 10), (4, 4, 10)]


def test_known_shape_within_the_autotuner_is_no_traffic(watched: Watched, slot: ReadSlot) -> None:
    op, arguments = watched.over(nothing), decode_arguments(16, workspace())
    for tuning in (False, True, False):
        watched.tuning._note(tuning)
        for _ in range(10):
            op(*arguments)
    (row,) = slot().rows
    assert (row.eager, row.tuning) == (20, 10)
    outcomes = [call.outcome for call in slot().calls]
    assert outcomes == [Outcome.EAGER, Outcome.TUNING, Outcome.EAGER]
