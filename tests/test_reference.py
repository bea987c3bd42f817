"""The stand-in for the native module: its carve, its refusals and its attention.

Calls are written against the parameter names that the installed FlashInfer's launcher declares.
Expected sizes are worked out beside the assertions; expected attention comes from a plain
double-precision loop.
"""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("flashinfer") is None:
    pytest.skip("flashinfer is not installed", allow_module_level=True)

from ws_guard import reference  # noqa: E402
from ws_guard.sizing import LAYOUTS, InputError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


# --- Carving and refusing -----------------------------------------------------------------------


def test_a_refusal_speaks_flashinfers_words() -> None:
    """64 heads, LSE, 394 MiB: 3,080 rows fit to the byte, one more is refused."""
    # Left behind the counter: 413,138,944 - 8,388,608 = 404,750,336.
    # 3,080 rows: 8 * 64 * 3,080 * 256 + 1,048,576 = 404,750,336.
    call("B", DECODE, sized(3080))
    with pytest.raises(RuntimeError) as refused:
        call("B", DECODE, sized(3081))
    assert str(refused.value) == REFUSED_3081


def test_the_reported_crash() -> None:
    """A step of 12,288 tokens at 64 heads asks 8 * 64 * 12,288 * 256 + 1,048,576 bytes."""
    with pytest.raises(RuntimeError, match=r"size 1611661312 .* but only 404750336 bytes"):
        call("B", DECODE, sized(12_288))


def test_layout_c_has_the_counter_outside() -> None:
    """3,144 rows fill 413,138,944 bytes exactly; the line number tells the layout."""
    call("C", DECODE, sized(3144))
    with pytest.raises(RuntimeError) as refused:
        call("C", DECODE, sized(3145))
    # 8 * 64 * 3,145 * 256 + 1,048,576.
    assert "allocator.h:71: " in str(refused.value)
    assert "with size 413270016 and alignment 16, but only 413138944 " in str(refused.value)


def test_layout_a_carves_no_stats_in_decode() -> None:
    call("A", DECODE, sized(65_535))


# Counter 8,388,608 + stats 8 * 64 * 74 * 256 + 1,048,576 = 10,747,904.
EXACT_74 = 8_388_608 + 10_747_904


def test_one_byte_short() -> None:
    call("B", DECODE, sized(74, workspace_bytes=EXACT_74))
    with pytest.raises(RuntimeError, match=r"size 10747904 .* but only 10747903 bytes"):
        call("B", DECODE, sized(74, workspace_bytes=EXACT_74 - 1))


def test_the_address_costs_padding() -> None:
    """One byte behind an aligned address, std::align skips 15 bytes before the counter."""
    room = torch.empty(EXACT_74 + 32, dtype=torch.uint8)
    aligned = -room.data_ptr() % 16
    for size, available in ((EXACT_74 + 15, None), (EXACT_74 + 14, 10_747_903)):
        step = sized(74) | {
            "workspace_buffer": room[aligned + 1 :][:size],
            "workspace_size": size,
        }
        if available is None:
            call("B", DECODE, step)
        else:
            with pytest.raises(RuntimeError, match=f"but only {available} bytes available"):
                call("B", DECODE, step)


def test_a_short_external_counter() -> None:
    """C checks 4 * round_up(max(batch * heads, SMs), 8) bytes: 4 * 74 * 64 = 18,944 here."""
    # int32 elements: the size is in bytes whatever the type.
    enough = torch.empty(18_944 // 4, dtype=torch.int32)
    call("C", DECODE, sized(74) | {"multi_ctas_kv_counter_buffer": enough})
    with pytest.raises(RuntimeError) as refused:
        call("C", DECODE, sized(74) | {"multi_ctas_kv_counter_buffer": enough[:-1]})
    assert str(refused.value) == (
        "Check failed: (static_cast<size_t>(multi_ctas_kv_counter_size) >= counter_bytes) "
        "is false: "
    )


@pytest.mark.parametrize("op", [CONTEXT, RAGGED, DSV4])
def test_other_ops_carve_and_give_zeros(op: str) -> None:
    """2 heads, 5 rows of up to 300 tokens."""
    values = {
        "out": torch.ones(7, 2, 512),
        "query": torch.ones(7, 2, 512),
        "workspace_buffer": torch.empty(0, dtype=torch.uint8),
        "batch_size": 5,
        "max_q_len": 300,
        "sm_count": 148,
        "workspace_size": 16 << 20,
    }
    if op != DSV4:
        values["lse"] = torch.ones(7, 2)
    call("B", op, values)
    assert not values["out"].any()
    # 8 * 2 * 5 * round_up(300, 256) + 1,048,576 = 1,089,536, beside the counter where there is one.
    least = {CONTEXT: 1_089_536, RAGGED: 8_388_608 + 1_089_536, DSV4: 8_388_608}[op]
    call("B", op, values | {"workspace_size": least + 15})
    with pytest.raises(RuntimeError, match="Buffer overflow when allocating memory for trtllm_gen"):
        call("B", op, values | {"workspace_size": least - 1})


def test_ragged_of_layout_a_counts_query_tokens() -> None:
    """A carves 8 * heads * tokens, LSE or not: 8 * 2 * 7 = 112 bytes behind the counter."""
    values = {
        "out": torch.ones(7, 2, 128),
        "query": torch.ones(7, 2, 128),
        "workspace_buffer": torch.empty(0, dtype=torch.uint8, device="meta"),
        "batch_size": 5,
        "max_q_len": 300,
        "sm_count": 148,
    }
    call("A", RAGGED, values | {"workspace_size": 8_388_608 + 112})
    with pytest.raises(RuntimeError, match="size 112 and alignment 16, but only 111 bytes"):
        call("A", RAGGED, values | {"workspace_size": 8_388_608 + 111})


def test_a_wrong_number_of_arguments() -> None:
    module = reference.NativeModule("B", INSTALLED)
    with pytest.raises(TypeError, match=f"Expected {len(INSTALLED[DECODE])} but got 2 arguments"):
        module.trtllm_paged_attention_decode(1, 2)


def test_an_op_that_the_release_lacks_is_no_attribute() -> None:
    module = reference.NativeModule(LAYOUTS["A"], {DECODE: INSTALLED[DECODE]})
    assert hasattr(module, DECODE)
    assert not hasattr(module, DSV4)


def test_unknown_layouts_and_ops_are_named() -> None:
    with pytest.raises(InputError, match="layout must be one of A, B, C, got 'Z'"):
        reference.NativeModule("Z", INSTALLED)
    with pytest.raises(InputError, match="got 'xqa'"):
        reference.NativeModule("B", {"xqa": ["out"]})


# --- Attention ----------------------------------------------------------------------------------

PAGE = 64
SCALE = 0.05


def attend_one(
    query: torch.Tensor,
    keys: list[torch.Tensor],
    value_dim: int,
    sinks: list[float] | None = None,
) -> tuple[list[torch.Tensor], list[float]]:
    """Attention of one row [heads, dim] in double precision: values and base-2 LSE per head."""
    values, lses = [], []
    for head, vector in enumerate(query.double()):
        scores = [float(vector @ key.double()) * SCALE for key in keys]
        total = sum(math.exp(score) for score in scores)
        if sinks:
            total += math.exp(sinks[head])
        weighted = torch.zeros(value_dim, dtype=torch.float64)
        for score, key in zip(scores, keys, strict=True):
            weighted += math.exp(score) / total * key[:value_dim].double()
        values.append(weighted)
        lses.append(math.log2(total) if total else -math.inf)
    return values, lses


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


def check(step: Arguments, keys_of_row: list[list[int]], **tolerance: float) -> None:
    """Run a step and compare each row with attention over the token slots it should see."""
    call("B", DECODE, step)
    tokens = step["key_cache"].flatten(0, 2).float()
    rows, heads, _ = step["query"].shape
    width = step["out"].size(-1)
    got = step["out"].view(rows, heads, width).double()
    sinks = step.get("attention_sinks")
    for row, seen in enumerate(keys_of_row):
        keys = [tokens[slot] for slot in seen]
        query = step["query"][row].float()
        values, lses = attend_one(query, keys, width, None if sinks is None else sinks.tolist())
        expected = torch.stack(values) * float(step["bmm2_scale"])
        limits = tolerance or {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(got[row], expected, **limits)
        if step["lse"] is not None:
            expected = torch.tensor(lses, dtype=torch.float64)
            torch.testing.assert_close(step["lse"][row].double(), expected, rtol=1e-4, atol=1e-4)


def test_sparse_attention() -> None:
    step = sparse_step(3)
    check(step, step["block_tables"].view(3, -1).tolist())


def test_padding_is_not_attended() -> None:
    """Row 0 ends in -1, row 1 has holes of -1, row 2 selects nothing: zeros and -inf."""
    step = sparse_step(3)
    table = step["block_tables"].view(3, -1)
    table[0, 20:] = -1
    table[1, ::2] = -1
    table[2] = -1
    check(step, [[slot for slot in row if slot >= 0] for row in table.tolist()])
    assert not step["out"][2].any()
    assert step["lse"][2].isneginf().all()


def test_short_sequences_see_fewer_than_top_k() -> None:
    """Only the first seq_len columns count; what lies behind may point outside the cache."""
    step = sparse_step(4, seq_lens=torch.tensor([5, 0, 32, 1], dtype=torch.int32))
    table = step["block_tables"].view(4, -1)
    table[0, 5:] = 1 << 30
    check(step, [table[row, :seen].tolist() for row, seen in enumerate((5, 0, 32, 1))])


def test_several_tokens_per_request() -> None:
    """Of three tokens the last sees the sequence of 20, each before it one token less."""
    step = sparse_step(6, q_len=3, seq_lens=torch.tensor([20, 4], dtype=torch.int32))
    table = step["block_tables"].view(6, -1)
    check(step, [table[row, :seen].tolist() for row, seen in enumerate((18, 19, 20, 2, 3, 4))])


def test_varying_numbers_of_tokens() -> None:
    """Requests of one and of three tokens; a fifth row that no request owns stays as it was."""
    step = sparse_step(
        5,
        batch_size=2,
        max_q_len=3,
        seq_lens=torch.tensor([10, 20], dtype=torch.int32),
        cum_seq_lens_q=torch.tensor([0, 1, 4], dtype=torch.int32),
        lse=None,
    )
    table = step["block_tables"].view(5, -1)
    check(step, [table[row, :seen].tolist() for row, seen in enumerate((10, 18, 19, 20))])
    assert (step["out"][4] == 7.0).all()


def test_tensor_scales() -> None:
    """A tensor for bmm1 holds scale * log2(e), as FlashInfer's Python passes it."""
    step = sparse_step(
        2,
        bmm1_scale=torch.tensor([SCALE * 1.44269504088896340736]),
        bmm2_scale=torch.tensor([0.25]),
    )
    check(step, step["block_tables"].view(2, -1).tolist())


def test_sinks_join_the_denominator() -> None:
    step = sparse_step(2, attention_sinks=torch.tensor([0.5, -1.0, 3.0, 0.0]))
    check(step, step["block_tables"].view(2, -1).tolist())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_low_precision(dtype: torch.dtype) -> None:
    """Arithmetic is float32 over the rounded inputs; a bfloat16 result has 8 bits."""
    step = sparse_step(2)
    step["query"] = step["query"].to(dtype)
    step["key_cache"] = step["value_cache"] = step["key_cache"].to(dtype)
    step["out"] = step["out"].bfloat16()
    check(step, step["block_tables"].view(2, -1).tolist(), rtol=2**-8, atol=1e-3)


def test_dense_attention_reads_pages() -> None:
    """Without top-k the table holds pages: 70 tokens are page 2 and six of page 0."""
    step = sparse_step(
        2,
        sparse_mla_top_k=0,
        block_tables=torch.tensor([[2, 0], [1, 3]], dtype=torch.int32),
        seq_lens=torch.tensor([70, 3], dtype=torch.int32),
    )
    check(step, [[*range(128, 192), *range(6)], [64, 65, 66]])


def test_a_decode_that_is_not_mla_gives_zeros() -> None:
    """Grouped-query attention has K and V apart: carved, not computed."""
    step = sparse_step(2, sparse_mla_top_k=0)
    step["value_cache"] = step["key_cache"].clone()
    call("B", DECODE, step)
    assert not step["out"].any()


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, chunked = sparse_step(50), sparse_step(50)
    call("B", DECODE, whole)
    # A row takes 2 * 4 * 576 + 32 * (576 + 2 * 4) = 23,296 elements: seven rows per chunk.
    monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", 7 * 23_296)
    call("B", DECODE, chunked)
    torch.testing.assert_close(chunked["out"], whole["out"])
    torch.testing.assert_close(chunked["lse"], whole["lse"])


def test_only_out_and_lse_are_written() -> None:
    """Results stand in the middle of larger buffers; all else keeps its pattern."""
    step = sparse_step(3)
    workspace = torch.full((EXACT_74,), 0xA5, dtype=torch.uint8)
    step |= {"workspace_buffer": workspace, "workspace_size": workspace.numel()}
    out, lse = torch.full((5, 1, 4, 512), 7.0), torch.full((5, 4), 7.0)
    step |= {"out": out[1:4], "lse": lse[1:4]}
    inputs = {name: step[name].clone() for name in ("query", "key_cache", "block_tables")}
    call("B", DECODE, step)
    assert (workspace == 0xA5).all()
    assert (out[[0, 4]] == 7.0).all()
    assert (lse[[0, 4]] == 7.0).all()
    assert (out[1:4] != 7.0).all()
    assert all(torch.equal(step[name], before) for name, before in inputs.items())


# --- Under FlashInfer's own Python --------------------------------------------------------------


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
