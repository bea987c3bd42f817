"""The probe in compiled code: Dynamo calls it, and looks into nothing of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
import torch._dynamo.utils as dynamo
from native_calls import MIB, Watched, decode_arguments, watch, workspace
from slot_views import ReadSlot

from ws_guard import WorkspaceOverflowError
from ws_guard.board import OVERFLOW
from ws_guard.probe import hot
from ws_guard.probe.dynamo import hide_from_dynamo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ws_guard.probe.recorder import Recorder


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    dynamo.counters.clear()
    yield
    torch._dynamo.reset()


def compiled_step(op: Callable[..., Any], arguments: list[Any]) -> Callable[..., Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        op(*arguments)
        return y * 2

    return torch.compile(step, backend="eager")


def frames_compiled() -> int:
    return dynamo.counters["frames"]["total"]


def test_compiled_code_calls_the_probe_as_it_is(watched: Watched, slot: ReadSlot) -> None:
    seen = []
    op = watched.over(lambda *args: seen.append(args))
    step = compiled_step(op, decode_arguments(4, workspace(64 * MIB)))
    for n in range(3):
        assert step(torch.full((2,), float(n))).tolist() == [2.0 * (n + 1)] * 2
    assert len(seen) == 3
    assert [row.eager for row in slot().rows] == [3]
    # The step up to the call, and the rest of it.
    assert frames_compiled() == 2
    (reason,) = dynamo.counters["graph_break"]
    # At the call itself, as without a probe: Dynamo cannot look into a native function either.
    assert ("class `Counted`" if hot.is_built() else "torch.compiler.disable") in reason


@pytest.mark.parametrize("batch", [12_288, -1], ids=["refused", "garbage"])
def test_what_goes_wrong_is_not_compiled_either(
    batch: int, watched: Watched, slot: ReadSlot
) -> None:
    op = watched.over(lambda *_args: None)
    arguments = decode_arguments(abs(batch), workspace(64 * MIB))
    if batch < 0:
        arguments[watched.at("query")] = None
    step = compiled_step(op, arguments)
    assert step(torch.zeros(2)).tolist() == [2.0, 2.0]
    assert slot().probe_errors == 1
    assert frames_compiled() == 2


@pytest.fixture
def attention(recorder: Recorder) -> Iterator[Callable[..., Callable[[], None]]]:
    """`attention(action)`: an op as engines register it, opaque to Dynamo, over a probed decode."""
    with torch.library._scoped_library("ws_guard_test", "FRAGMENT") as library:
        library.define("attend(Tensor x, int batch) -> Tensor")

        def make(action: str, seen: list[int]) -> Any:
            watched = watch(recorder, action)
            at = watched.at("batch_size")
            op, buffer = watched.over(lambda *args: seen.append(args[at])), workspace()

            def attend(x: torch.Tensor, batch: int) -> torch.Tensor:
                op(*decode_arguments(batch, buffer))
                return x * 2

            library.impl("attend", attend, "CompositeExplicitAutograd")
            library._register_fake("attend", lambda x, _batch: torch.empty_like(x))
            return torch.ops.ws_guard_test.attend

        yield make


@pytest.mark.parametrize("action", ["observe", "raise", "split"])
def test_no_graph_break_and_no_recompilation_comes_from_us(
    action: str,
    attention: Callable[[str, list[int]], Callable[..., Any]],
    slot: ReadSlot,
) -> None:
    """The whole step is one graph, whatever is done about a call in it."""
    seen: list[int] = []
    attend = attention(action, seen)

    @torch.compile(backend="eager", fullgraph=True, dynamic=True)
    def step(x: torch.Tensor, batch: int) -> torch.Tensor:
        return attend(x + 1, batch) - 1

    x = torch.zeros(2)
    for batch in (16, 17, 18):
        assert step(x, batch).tolist() == [1.0, 1.0]
    before = frames_compiled()
    for batch in (16, 16, 12_288, 16, 24, 12_288, 16):
        if action == "raise" and batch == 12_288:
            with pytest.raises(WorkspaceOverflowError):
                step(x, batch)
        else:
            assert step(x, batch).tolist() == [1.0, 1.0]
    made = {"observe": [12_288], "raise": [], "split": [3_072] * 4}[action]
    assert seen == [16, 17, 18, 16, 16, *made, 16, 24, *made, 16]
    # Here the native function refuses nothing: what was only observed is taken back.
    told = {
        "observe": {},
        "raise": {(0, OVERFLOW, "raised"): 2},
        "split": {(0, OVERFLOW, "split"): 2},
    }
    assert slot().events == told[action]
    assert frames_compiled() == before
    assert not dynamo.counters["graph_break"]


def test_torch_without_the_interface_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._C._dynamo.eval_frame")

    def function() -> int:
        return 7

    hide_from_dynamo(function)
    assert function._torchdynamo_disable
    assert function() == 7
