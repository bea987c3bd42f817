"""The stand-in's attention, against a plain double-precision loop."""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("flashinfer") is None:
    pytest.skip("flashinfer is not installed", allow_module_level=True)

from ws_guard import reference  # noqa: E402 - after the skips

from .native_steps import (  # noqa: E402 - after the skips
    DECODE,
    EXACT_74,
    SCALE,
    Arguments,
    call,
    sparse_step,
)
from .plain_attention import attend_one  # noqa: E402 - after the skips


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
