"""The probe in compiled code: Dynamo calls it, and looks into nothing of it."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("flashinfer") is None:
    pytest.skip("flashinfer is not installed", allow_module_level=True)

import torch._dynamo.utils as dynamo  # noqa: E402
from native_calls import MIB, Watched, decode_arguments, watch, workspace  # noqa: E402

from ws_guard.probe.dynamo import hide_from_dynamo  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ws_guard.board import SlotView
    from ws_guard.probe.recorder import Recorder


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    dynamo.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def watched(recorder: Recorder) -> Watched:
    return watch(recorder)


def compiled_step(op: Callable[..., Any], arguments: list[Any]) -> Callable[..., Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        op(*arguments)
        return y * 2

    return torch.compile(step, backend="eager")


def frames_compiled() -> int:
    return dynamo.counters["frames"]["total"]


def test_compiled_code_calls_the_probe_as_it_is(
    watched: Watched, slot: Callable[[], SlotView]
) -> None:
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
    assert "torch.compiler.disable" in reason


@pytest.mark.parametrize("batch", [12_288, -1], ids=["refused", "garbage"])
def test_what_goes_wrong_is_not_compiled_either(
    batch: int, watched: Watched, slot: Callable[[], SlotView]
) -> None:
    op = watched.over(lambda *_args: None)
    arguments = decode_arguments(abs(batch), workspace(64 * MIB))
    if batch < 0:
        arguments[watched.at("query")] = None
    step = compiled_step(op, arguments)
    assert step(torch.zeros(2)).tolist() == [2.0, 2.0]
    assert slot().probe_errors == 1
    assert frames_compiled() == 2


def test_torch_without_the_interface_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._C._dynamo.eval_frame")
    function: Any = lambda: 7  # noqa: E731
    hide_from_dynamo(function)
    assert function._torchdynamo_disable
    assert function() == 7
