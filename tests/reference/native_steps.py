"""Native steps by parameter name, as the installed FlashInfer's launcher declares them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ws_guard import reference

Arguments: TypeAlias = dict[str, Any]

DECODE = "trtllm_paged_attention_decode"
CONTEXT = "trtllm_paged_attention_context"
RAGGED = "trtllm_ragged_attention"
DSV4 = "trtllm_paged_attention_decode_sparse_mla_dsv4"

# vLLM's default workspace, 394 MiB.
WORKSPACE_BYTES = 413_138_944
REFUSED_3081 = (
    "Error in function 'aligned_alloc' at include/flashinfer/allocator.h:49: Buffer overflow when "
    "allocating memory for trtllm_gen_softmax_workspace with size 404881408 and alignment 16, but "
    "only 404750336 bytes available in AlignedAllocator. Increase the workspace buffer size."
)


def installed_parameters() -> dict[str, list[str]]:
    """Native parameter names of each op, from the installed launcher's source."""
    package = importlib.util.find_spec("flashinfer")
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).with_name("data") / "csrc/trtllm_fmha_kernel_launcher.cu"
    names = {}
    for op in (DECODE, CONTEXT, RAGGED, DSV4):
        declared = re.search(rf"void {op}\((.*?)\) {{", source.read_text(), re.DOTALL)
        assert declared is not None
        parameters = re.sub(r"<[^<>]*>", "", declared[1]).split(",")
        names[op] = [parameter.split()[-1] for parameter in parameters]
    return names


INSTALLED = installed_parameters()


def parameters_of(layout: str) -> dict[str, list[str]]:
    """The installed names with (C) or without (A, B) the external counter behind the workspace."""
    adapted = {}
    for op, installed in INSTALLED.items():
        names = [name for name in installed if name != "multi_ctas_kv_counter_buffer"]
        if layout == "C" and op != RAGGED:
            names.insert(names.index("workspace_buffer") + 1, "multi_ctas_kv_counter_buffer")
        adapted[op] = names
    return adapted


def call(layout: str, op: str, arguments: Arguments) -> None:
    """Call an op by parameter names; what is not given is absent, as FlashInfer passes it."""
    names = parameters_of(layout)
    unknown = arguments.keys() - names[op]
    assert not unknown
    positional = [arguments.get(name) for name in names[op]]
    getattr(reference.NativeModule(layout, names), op)(*positional)


def sized(batch: int, *, heads: int = 64, workspace_bytes: int = WORKSPACE_BYTES) -> Arguments:
    """A sparse MLA decode step of `batch` rows that costs no memory, LSE included."""
    cache = torch.empty(16, 1, 64, 576, device="meta")
    return {
        "out": torch.empty(batch, 1, heads, 512, device="meta"),
        "query": torch.empty(batch, heads, 576, device="meta"),
        "key_cache": cache,
        "value_cache": cache,
        "workspace_buffer": torch.empty(workspace_bytes, dtype=torch.uint8, device="meta"),
        "block_tables": torch.empty(batch, 1, 2048, dtype=torch.int32, device="meta"),
        "seq_lens": torch.empty(batch, dtype=torch.int32, device="meta"),
        "max_q_len": 1,
        "bmm1_scale": 1.0,
        "bmm2_scale": 1.0,
        "batch_size": batch,
        "sparse_mla_top_k": 2048,
        "sm_count": 148,
        "workspace_size": workspace_bytes,
        "lse": torch.empty(batch, heads, device="meta"),
    }


# Counter 8,388,608 + stats 8 * 64 * 74 * 256 + 1,048,576 = 10,747,904.
EXACT_74 = 8_388_608 + 10_747_904
PAGE = 64
SCALE = 0.05


def sparse_step(
    rows: int, *, heads: int = 4, top_k: int = 32, q_len: int = 1, **changes: object
) -> Arguments:
    """Random sparse MLA rows over four pages, every selected token a valid one."""
    random = torch.Generator().manual_seed(0)
    cache = torch.randn(4, 1, PAGE, 576, generator=random)
    slots = [torch.randperm(4 * PAGE, generator=random)[:top_k] for _ in range(rows)]
    return sized(rows // q_len, heads=heads) | {
        "out": torch.full((rows // q_len, q_len, heads, 512), 7.0),
        "query": torch.randn(rows, heads, 576, generator=random),
        "key_cache": cache,
        "value_cache": cache,
        "block_tables": torch.stack(slots).int().view(rows // q_len, q_len, top_k),
        "seq_lens": torch.full((rows // q_len,), 1000, dtype=torch.int32),
        "max_q_len": q_len,
        "bmm1_scale": SCALE,
        "sparse_mla_top_k": top_k,
        "lse": torch.full((rows, heads), 7.0),
        **changes,
    }
