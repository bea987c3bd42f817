"""Probes in native modules of trtllm-gen and of XQA, each by its own contract, and out again."""

from __future__ import annotations

import functools
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest

from ws_guard import contract as contracts
from ws_guard.contract import XqaContract, installed_contract, installed_xqa
from ws_guard.probe.instruments import Instruments
from ws_guard.probe.loading import _LOADER_FUNCTION, DOOR
from ws_guard.sizing import OPS, XQA_OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meetings import Meetings

DECODE, XQA, MLA = OPS["decode"], XQA_OPS["xqa"], XQA_OPS["xqa_mla"]


class Bench:
    """Instruments, and what they report; `reads` counts the readings of XQA's source."""

    def __init__(self, meetings: Meetings) -> None:
        self.problems: list[str] = []
        self.reads = 0
        self.instruments = Instruments(
            installed_contract(), meetings.recorder, meetings.parts, self.problems.append
        )

    def load(self, *ops: str) -> Any:
        """A native module with those ops, as the door hands it over."""
        module = SimpleNamespace(**{op: Native(op) for op in ops}, other="passed through")
        self.instruments._instrument(module)
        return module


class Native:
    """A native function; whatever else stands in its place is a probe."""

    def __init__(self, op: str) -> None:
        self._op = op

    def __call__(self, *_: object) -> str:
        return self._op


@pytest.fixture
def bench(meet: Callable[..., Meetings], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(meet())

    def read() -> XqaContract:
        bench.reads += 1
        return installed_xqa()

    monkeypatch.setattr(contracts, "installed_xqa", read)
    yield bench
    bench.instruments.leave()


def is_probed(module: Any, op: str) -> bool:
    return not isinstance(getattr(module, op), Native)


def test_a_module_of_trtllm_gen_asks_nothing_of_xqa(bench: Bench) -> None:
    module = bench.load(*OPS.values())
    assert all(is_probed(module, op) for op in OPS.values())
    assert (bench.reads, bench.problems, module.other) == (0, [], "passed through")


def test_xqas_source_is_read_once(bench: Bench) -> None:
    for _ in range(3):
        assert is_probed(bench.load(XQA), XQA)
    assert is_probed(bench.load(MLA), MLA)
    assert (bench.reads, bench.problems) == (1, [])


def test_leaving_restores_the_identical_functions(bench: Bench) -> None:
    module = SimpleNamespace(**{op: Native(op) for op in (DECODE, XQA)})
    before = dict(vars(module))
    bench.instruments._instrument(module)
    assert all(vars(module)[op] is not before[op] for op in before)
    bench.instruments.leave()
    assert all(vars(module)[op] is before[op] for op in before)


def test_an_op_that_is_not_understood_is_told_and_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = installed_xqa()
    signatures = {MLA: known.signatures[MLA]}
    told = XqaContract(known.release, signatures, {XQA: "xqa/mha.cu does not say so"})
    monkeypatch.setattr(contracts, "installed_xqa", lambda: told)
    module = bench.load(DECODE, XQA, MLA)
    assert [is_probed(module, op) for op in (DECODE, XQA, MLA)] == [True, False, True]
    assert bench.problems == [
        f"calls of {XQA} are not seen, its source is not understood: xqa/mha.cu does not say so"
    ]


def test_an_xqa_that_cannot_be_read_leaves_trtllm_gen_watched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> XqaContract:
        raise OSError("on purpose")

    monkeypatch.setattr(contracts, "installed_xqa", fail)
    module = bench.load(DECODE, XQA)
    assert [is_probed(module, op) for op in (DECODE, XQA)] == [True, False]
    assert bench.problems == ["OSError while instrumenting: on purpose"]
    assert module.xqa_wrapper() == XQA


# -- FlashInfers that are not as we know them ---------------------------------------------------


def jit_core(**names: object) -> ModuleType:
    """What stands in the place of `flashinfer.jit.core`, already imported."""
    core = ModuleType(DOOR)
    vars(core).update(names)
    return core


class JitSpec:
    """FlashInfer's, as far as the probe knows it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build_and_load(self) -> Any:
        """A native module."""
        return SimpleNamespace(**{DECODE: Native(DECODE)})


@pytest.fixture
def spec_class() -> type[Any]:
    return type("JitSpec", (), dict(vars(JitSpec)))


def test_the_door_lets_native_modules_in_and_closes_behind_us(
    bench: Bench, spec_class: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, DOOR, jit_core(JitSpec=spec_class))
    before = vars(spec_class)["build_and_load"]
    bench.instruments.enter()
    assert is_probed(spec_class("fmha_gen").build_and_load(), DECODE)
    assert not is_probed(spec_class("batch_decode").build_and_load(), DECODE)
    bench.instruments.leave()
    assert vars(spec_class)["build_and_load"] is before
    assert bench.problems == []


def test_whoever_patched_over_the_door_stays(
    bench: Bench,
    spec_class: type[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, DOOR, jit_core(JitSpec=spec_class))
    bench.instruments.enter()
    ours = vars(spec_class)["build_and_load"]
    spec_class.build_and_load = theirs = lambda spec: ours(spec)
    bench.instruments.leave()
    assert vars(spec_class)["build_and_load"] is theirs
    (line,) = caplog.messages
    assert line.endswith("JitSpec.build_and_load was patched again")


def test_a_core_without_the_door_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, DOOR, jit_core())
    bench.instruments.enter()
    (problem,) = bench.problems
    assert problem.startswith(f"{DOOR} has no JitSpec.build_and_load (")
    assert problem.endswith("): no call is seen")


def test_a_loader_that_fails_is_told(
    bench: Bench, spec_class: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashInfer keeps its module behind a cached function, which is called once more."""

    @functools.cache
    def get_trtllm_gen_fmha_module() -> object:
        if loads:
            raise OSError("the cache was emptied")
        return loads.append("once")

    loads: list[str] = []
    get_trtllm_gen_fmha_module()
    module = ModuleType("flashinfer.stand_in")
    vars(module)[_LOADER_FUNCTION] = Emptied(get_trtllm_gen_fmha_module)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, DOOR, jit_core(JitSpec=spec_class))
    bench.instruments.enter()
    assert bench.problems == [
        "native modules loaded before are not seen: OSError('the cache was emptied')"
    ]


class Emptied:
    """A cached function whose cache another thread empties right after it was asked about."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def cache_info(self) -> Any:
        told = self._function.cache_info()
        self._function.cache_clear()
        return told

    def __call__(self) -> object:
        return self._function()


def test_a_tuner_of_another_kind_is_told_and_calls_count(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = SimpleNamespace(is_tuning_mode="sometimes")
    autotuner = ModuleType("flashinfer.autotuner")
    vars(autotuner)["AutoTuner"] = type("AutoTuner", (), {"get": staticmethod(lambda: tuner)})
    monkeypatch.setitem(sys.modules, autotuner.__name__, autotuner)
    assert is_probed(bench.load(DECODE), DECODE)
    (problem,) = bench.problems
    assert problem.startswith("FlashInfer's autotuner is not understood, its calls count: TypeErr")
