"""The stand-in below FlashInfer's own Python."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("flashinfer") is None:
    pytest.skip("flashinfer is not installed", allow_module_level=True)

from ws_guard import reference  # noqa: E402 - after the skips

from .native_steps import (  # noqa: E402 - after the skips
    DECODE,
    EXACT_74,
    INSTALLED,
    REFUSED_3081,
    SCALE,
    sized,
    sparse_step,
)
from .plain_attention import attend_one  # noqa: E402 - after the skips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def flashinfer_mla(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """FlashInfer's public MLA decode with the stand-in below it and a B200 pretended."""
    core = pytest.importorskip("flashinfer.mla._core")
    layout = "C" if "multi_ctas_kv_counter_buffer" in INSTALLED[DECODE] else "B"
    module = reference.NativeModule(layout, INSTALLED)
    # The real spec downloads headers of the kernels before there is anything to build.
    spec = SimpleNamespace(build_and_load=lambda: module, get_library_path=lambda: "")
    monkeypatch.setattr(core, "gen_trtllm_gen_fmha_module", lambda: spec)
    monkeypatch.setattr(core, "setup_cubin_loader", lambda _: None)
    monkeypatch.setattr(core, "get_device_sm_count", lambda _: 148)
    monkeypatch.setattr(core, "get_compute_capability", lambda _: (10, 0))
    monkeypatch.setattr(core, "device_support_pdl", lambda _: True)
    core.get_trtllm_gen_fmha_module.cache_clear()
    yield core.trtllm_batch_decode_with_kv_cache_mla
    core.get_trtllm_gen_fmha_module.cache_clear()


def test_through_flashinfers_public_function(flashinfer_mla: Callable[..., Any]) -> None:
    """A sparse decode with LSE as vLLM calls it; a scale says the same as number and as tensor."""
    step = sparse_step(3)
    arguments = {
        "query": step["query"].view(3, 1, 4, 576).bfloat16(),
        "kv_cache": step["key_cache"].bfloat16(),
        "workspace_buffer": torch.zeros(EXACT_74, dtype=torch.uint8),
        "qk_nope_head_dim": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "block_tables": step["block_tables"],
        "seq_lens": step["seq_lens"],
        "max_seq_len": 32,
        "sparse_mla_top_k": 32,
        "backend": "trtllm-gen",
        "return_lse": True,
    }
    out, lse = flashinfer_mla(**arguments, bmm1_scale=SCALE)
    from_tensor, _ = flashinfer_mla(**arguments, bmm1_scale=torch.tensor([SCALE]))
    torch.testing.assert_close(from_tensor, out)
    tokens = arguments["kv_cache"].flatten(0, 2).float()
    for row, slots in enumerate(step["block_tables"].view(3, -1).tolist()):
        query = arguments["query"][row, 0].float()
        values, lses = attend_one(query, [tokens[slot] for slot in slots], 512)
        torch.testing.assert_close(out[row, 0].double(), torch.stack(values), rtol=2**-8, atol=1e-3)
        torch.testing.assert_close(lse[row], torch.tensor(lses), rtol=1e-4, atol=1e-4)


def test_flashinfers_public_function_dies_as_reported(flashinfer_mla: Callable[..., Any]) -> None:
    """64 heads, 394 MiB: FlashInfer's own Python turns 3,081 rows into the reported text."""
    step = sized(3081)
    if "multi_ctas_kv_counter_buffer" in INSTALLED[DECODE]:
        pytest.skip("this release's layout takes 3,144 rows")
    with pytest.raises(RuntimeError) as refused:
        flashinfer_mla(
            step["query"].unsqueeze(1),
            step["key_cache"],
            step["workspace_buffer"],
            128,
            512,
            64,
            step["block_tables"],
            step["seq_lens"],
            2048,
            sparse_mla_top_k=2048,
            backend="trtllm-gen",
            return_lse=True,
        )
    assert str(refused.value) == REFUSED_3081
