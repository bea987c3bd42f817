"""When the plugin gives vLLM's sparse MLA workspace a size, and what it says when it does not."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ws_guard.engines.vllm_sizing import (
    Memory,
    Step,
    existing_bytes,
    foreseen_bytes,
    size_workspace,
    sizes_itself,
)

MIB = 1 << 20
ENV = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
#: The reported crash: 64 heads over tp 8, gathered over dcp 8, 16,384 tokens.
STEP = Step(heads_per_rank=8, dcp=8, tokens=16_384)
WANTED = 2_561_671_168
CPU = "cpu"


class Torch:
    """As much of torch as sizing touches; `fails` makes the next allocation fail."""

    int8 = "int8"

    class cuda:  # noqa: N801 - torch's own name
        class OutOfMemoryError(RuntimeError):
            pass

    def __init__(self) -> None:
        self.fails = False

    def zeros(self, size: int, dtype: str, device: str) -> SimpleNamespace:
        assert (dtype, device) == ("int8", CPU)
        if self.fails:
            raise self.cuda.OutOfMemoryError
        return SimpleNamespace(nbytes=size)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    monkeypatch.delenv(ENV, raising=False)
    stand_in = Torch()
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    return stand_in


@pytest.fixture
def module() -> SimpleNamespace:
    """vLLM's module before its first forward."""
    return SimpleNamespace(_fi_sparse_workspace=None)


def size(module: Any, step: Step = STEP, memory: Memory | None = None, sleeps: bool = False) -> str:
    return size_workspace(module, CPU, step, memory, sleeps=sleeps)


def test_size_is_that_of_the_later_release(module: SimpleNamespace) -> None:
    assert STEP.workspace_bytes == WANTED
    assert Step(16, 8, 512).workspace_bytes == 548_405_248
    assert size(module) == ""
    assert existing_bytes(module) == WANTED


def test_smaller_buffer_is_replaced_and_a_larger_one_stays(module: SimpleNamespace) -> None:
    module._fi_sparse_workspace = SimpleNamespace(nbytes=394 * MIB)
    size(module)
    assert existing_bytes(module) == WANTED
    larger = module._fi_sparse_workspace = SimpleNamespace(nbytes=WANTED + 1)
    assert size(module) == ""
    assert module._fi_sparse_workspace is larger


def test_without_dcp_nothing_is_done(module: SimpleNamespace) -> None:
    assert size(module, STEP._replace(dcp=1)) == ""
    assert existing_bytes(module) is None
    assert STEP._replace(dcp=1).workspace_bytes == 394 * MIB


@pytest.mark.parametrize("given", [100 * MIB, WANTED - 1])
def test_smaller_explicit_value_is_respected_with_both_numbers(
    module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, given: int
) -> None:
    monkeypatch.setenv(ENV, str(given))
    said = size(module)
    assert existing_bytes(module) is None
    assert f"{ENV}={given} is respected" in said
    assert said.endswith(f"set {ENV}={WANTED}")


def test_explicit_value_that_suffices_is_respected_in_silence(
    module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV, str(WANTED))
    assert size(module) == ""
    assert existing_bytes(module) is None


def test_too_little_memory_keeps_vllms_buffer_and_says_what_to_lower_by_how_much(
    module: SimpleNamespace,
) -> None:
    # 12 GB free, of which the KV cache will take 10; 180 GB in all.
    memory = Memory(free=12_000_000_000, total=180_000_000_000, spoken_for=10_000_000_000)
    said = size(module, memory=memory)
    assert existing_bytes(module) is None
    assert "needs 2,561,671,168 bytes, 2,000,000,000 are left" in said
    # 561,671,168 bytes of 180 GB are 0.0031.
    assert "--gpu-memory-utilization by 0.01" in said
    # (2,000,000,000 - 395 MiB) / 131,072 bytes a token = 12,098 tokens.
    assert "--max-num-batched-tokens by 4,286 to 12,098" in said
    fitting = STEP._replace(tokens=12_098).workspace_bytes
    assert fitting <= memory.left < STEP._replace(tokens=12_099).workspace_bytes


def test_more_than_a_whole_gpu_leaves_smaller_steps_alone_as_the_remedy(
    module: SimpleNamespace,
) -> None:
    # 2,561,671,168 bytes wanted of a GPU that has 2 GB in all.
    said = size(module, memory=Memory(free=0, total=2_000_000_000, spoken_for=0))
    assert "--gpu-memory-utilization" not in said
    assert "--max-num-batched-tokens" in said


def test_memory_that_is_just_enough_is_taken(module: SimpleNamespace) -> None:
    memory = Memory(free=WANTED + 5, total=WANTED * 2, spoken_for=5)
    assert size(module, memory=memory) == ""
    assert existing_bytes(module) == WANTED


def test_refused_allocation_keeps_vllms_buffer(module: SimpleNamespace, torch: Torch) -> None:
    torch.fails = True
    assert "vLLM's own buffer stays" in size(module)
    assert existing_bytes(module) is None


def test_sleep_mode_would_throw_the_buffer_away(module: SimpleNamespace) -> None:
    assert size(module, sleeps=True).endswith(f"set {ENV}={WANTED}")
    assert existing_bytes(module) is None


def test_foreseen_size(module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sizes_itself(module)
    assert sizes_itself(SimpleNamespace(compute_trtllm_sparse_mla_workspace_bytes=None))
    assert foreseen_bytes(STEP, "auto", itself=False) == WANTED
    assert foreseen_bytes(STEP, "off", itself=False) == 394 * MIB
    assert foreseen_bytes(STEP, "off", itself=True) == WANTED
    monkeypatch.setenv(ENV, "1048576")
    assert foreseen_bytes(STEP, "auto", itself=True) == MIB
