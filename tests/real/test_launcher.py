"""The real launcher and the real public functions, without a GPU."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from carve_comparison import SHAPES, Findings, compare, difference
from flashinfer_calls import PUBLIC_CALLS, Shape, workspace
from native_ops import NativeOps
from public_calls import cases, reach_all

from ws_guard import launcher
from ws_guard.launcher import installed_flashinfer_root
from ws_guard.sizing import LAYOUTS, Call, layouts_of_release

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.launcher import Recorder

HERE = Path(__file__).parent
OTHER_RELEASES = ("0.6.15.post1", "0.7.4")
VLLM_DEFAULT = 413_138_944


def launcher_source() -> Path:
    return installed_flashinfer_root() / "data" / "csrc" / "trtllm_fmha_kernel_launcher.cu"


def check(findings: Findings, seed: int) -> None:
    assert findings.differences == [], f"WS_GUARD_SEED={seed}"
    assert sum(findings.shapes.values()) >= 500
    assert min(findings.shapes.values()) >= 50
    # The shapes have to reach both answers, and the byte between them.
    assert findings.seen["refusals"] >= 500
    assert findings.seen["edges"] >= 200
    assert (findings.seen["counter_refusals"] > 0) == (findings.layout == "C")


@pytest.mark.usefixtures("native_library")
def test_carve_answers_as_the_installed_launcher(seed: int) -> None:
    check(compare(seed), seed)


@pytest.mark.parametrize("release", OTHER_RELEASES)
def test_carve_answers_as_the_launcher_of(
    release: str, seed: int, run_under: Callable[..., str]
) -> None:
    findings = json.loads(run_under(release, str(HERE / "carve_comparison.py"), str(seed)))
    assert findings["release"] == release
    check(Findings(**findings), seed)


def test_comparison_notices_a_wrong_layout(native_library: Path) -> None:
    import flashinfer

    right = layouts_of_release(flashinfer.__version__)[0]
    native = NativeOps(native_library, launcher_source())
    told = 0
    for entry in SHAPES:
        call = Call(entry, heads=64, batch=3081, lse=entry != "dsv4")
        real = native.carve(call, VLLM_DEFAULT)
        assert difference(real, call, right, VLLM_DEFAULT, native.address) == ""
        told += any(
            difference(real, call, wrong, VLLM_DEFAULT, native.address)
            for wrong in LAYOUTS.values()
            if wrong is not right
        )
    assert told == len(SHAPES)


def test_public_calls_reach_the_kernel_with_the_callers_numbers(native_library: Path) -> None:
    assert native_library.exists()
    reached = reach_all()
    assert [each.given for each in reached] == [each.asked for each in reached]
    assert len(reached) == len(cases()) == 28


@pytest.mark.parametrize("release", OTHER_RELEASES)
def test_public_calls_reach_the_kernel_of(release: str, run_under: Callable[..., str]) -> None:
    reached = json.loads(run_under(release, str(HERE / "public_calls.py")))
    assert [each["given"] for each in reached] == [each["asked"] for each in reached]
    assert len(reached) == len(cases())


@pytest.mark.usefixtures("on_cpu")
def test_public_call_dies_as_reported() -> None:
    """vLLM's step of 12,288 tokens under DCP 8: 64 heads, LSE, the default workspace."""
    # One float2 per head and row, rows rounded up to 256 query tokens; a guard of 1 MiB.
    size = 8 * 64 * 12_288 * 256 + 1_048_576
    assert size == 1_611_661_312
    counter_inside = "trtllm_gen_counter_workspace" in launcher_source().read_text()
    available = VLLM_DEFAULT - (8192 * 256 * 4 if counter_inside else 0)
    call = PUBLIC_CALLS["sparse_mla"].build(Shape(12_288, lse=True), workspace(VLLM_DEFAULT))
    with pytest.raises(RuntimeError, match="trtllm_gen_softmax_workspace") as died:
        call()
    assert f"size {size} and alignment 16, but only {available} bytes available" in str(died.value)


def test_other_hooks_of_the_loader_still_see_every_load(
    native_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flashinfer.jit.core as core

    seen: list[str] = []
    original = core.JitSpec.build_and_load

    def hook(spec: Any) -> Any:
        seen.append(spec.name)
        return original(spec)

    monkeypatch.setattr(core.JitSpec, "build_and_load", hook)
    for _ in range(2):
        with launcher.on_cpu(native_library):
            for name in ("sparse_mla", "decode", "decode_wrapper", "context", "prefill_wrapper"):
                PUBLIC_CALLS[name].build(Shape(2), workspace(VLLM_DEFAULT))()
    assert set(seen) == {"fmha_gen"}
    # mla, decode and prefill keep a module each, the two wrappers load on their own.
    assert len(seen) % 2 == 0
    assert len(seen) // 2 >= 4
    assert core.JitSpec.build_and_load is hook


def test_on_cpu_puts_everything_back(native_library: Path) -> None:
    import flashinfer.decode
    import flashinfer.jit.attention.modules
    import flashinfer.jit.core
    import flashinfer.jit.env
    import flashinfer.mla
    import flashinfer.prefill
    import flashinfer.utils

    touched = (
        flashinfer.decode,
        flashinfer.jit.attention.modules,
        flashinfer.jit.core,
        flashinfer.jit.env,
        flashinfer.mla._core,
        flashinfer.prefill,
        flashinfer.utils,
    )
    before = [dict(vars(module)) for module in touched]
    with pytest.raises(RuntimeError, match="overflow"), launcher.on_cpu(native_library):
        PUBLIC_CALLS["decode"].build(Shape(2, lse=True), workspace(1))()
    for module, names in zip(touched, before, strict=True):
        assert all(vars(module)[name] is value for name, value in names.items()), module
    assert flashinfer.decode.get_trtllm_gen_fmha_module.cache_info().currsize == 0


def test_record_belongs_to_its_thread(on_cpu: Recorder) -> None:
    PUBLIC_CALLS["decode"].build(Shape(3), workspace(VLLM_DEFAULT))()
    elsewhere: list[object] = []
    thread = threading.Thread(target=lambda: elsewhere.append(on_cpu.last()))
    thread.start()
    thread.join()
    here = on_cpu.last()
    assert elsewhere == [None]
    assert here is not None
    assert here.batch == 3
