"""Errors, wrong and hostile arguments, interrupts: all come through as without the probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from hot_paths import FIRST
from native_calls import decode_arguments, nothing, workspace
from slot_views import ReadSlot, eager_by_batch

if TYPE_CHECKING:
    from native_calls import Watched


def test_the_native_error_comes_through_as_it_is(watched: Watched, slot: ReadSlot) -> None:
    errors: list[Exception] = []

    def native(*_args: object) -> None:
        if errors:
            raise errors[0]

    op, arguments = watched.over(native), decode_arguments(16, workspace())
    for _ in range(FIRST):
        op(*arguments)
    errors.append(KeyError("of the kernel"))
    with pytest.raises(KeyError) as caught:
        op(*arguments)
    assert caught.value is errors[0]
    assert slot().events == {}
    # A refusal that nobody foresaw is counted, and that it was not foreseen.
    text = "Buffer overflow when allocating memory for trtllm_gen_softmax_workspace"
    errors[0] = RuntimeError(text)
    with pytest.raises(RuntimeError) as refused:
        op(*arguments)
    assert refused.value is errors[0]
    assert (list(slot().events.values()), slot().probe_errors) == ([1], 1)


@pytest.mark.parametrize("arguments", [[], [None] * 3, [None] * 40])
def test_wrong_arguments_reach_the_native_function(
    arguments: list[Any], watched: Watched, slot: ReadSlot
) -> None:
    op = watched.over(lambda *args: args)
    for _ in range(FIRST):
        op(*decode_arguments(16, workspace()))
    assert op(*arguments) == tuple(arguments)
    assert slot().probe_errors == 1


def test_hostile_arguments_are_nobodys_business(watched: Watched, slot: ReadSlot) -> None:
    class Nothing:
        shape = "no shape"

        def data_ptr(self) -> int:
            raise OSError("no memory")

    op, arguments = watched.over(lambda *args: len(args)), decode_arguments(16, workspace())
    for _ in range(FIRST):
        op(*arguments)
    for name in ("query", "workspace_buffer", "batch_size", "max_q_len", "workspace_size"):
        for value in (None, Nothing(), "text", 1.5, 1 << 200, torch.zeros(3)):
            wrong = list(arguments)
            wrong[watched.at(name)] = value
            assert op(*wrong) == len(arguments)
    op(*arguments)
    assert max(row.eager for row in slot().rows if row.shape.batch == 16) == FIRST + 1


def test_an_interrupt_amid_the_look_at_a_call_is_not_lost(watched: Watched, slot: ReadSlot) -> None:
    """A signal's handler may run, and raise, where a tensor's class is written in Python."""

    class Interrupted:
        def __init__(self) -> None:
            self.interrupts = [KeyboardInterrupt()]

        @property
        def shape(self) -> Any:
            if self.interrupts:
                raise self.interrupts.pop()
            return arguments[watched.at("query")].shape

    calls: list[None] = []
    op = watched.over(lambda *_args: calls.append(None))
    arguments = decode_arguments(16, workspace())
    for _ in range(FIRST):
        op(*arguments)
    other = list(arguments)
    other[watched.at("query")] = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        op(*other)
    op(*other)
    assert len(calls) == FIRST + 1
    assert (eager_by_batch(slot()), slot().probe_errors) == ({16: FIRST + 1}, 0)


def test_keyword_arguments_are_refused_as_by_the_native_function(watched: Watched) -> None:
    op = watched.over(nothing)
    with pytest.raises(TypeError):
        op(*decode_arguments(16, workspace()), more=1)
