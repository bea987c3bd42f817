"""Which decode calls are cut along the batch, where, and which are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch

from ws_guard.contract import installed_contract
from ws_guard.probe.calls import NativeCall
from ws_guard.probe.split import Splitter, UnsplittableError, piece_rows
from ws_guard.sizing import LAYOUTS, Call, HeadDims, Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20
SIZE = 394 * MIB
MULTI_WAVE = "FLASHINFER_TRTLLM_GEN_MULTI_WAVE_KV_SPLIT"
SPARSE_MLA = HeadDims(576, 512, 2048)
#: Parameters of FlashInfer 0.7.4's native decode; releases before it have some of them.
PARAMETERS = (
    "out", "out_scale_factor", "query", "key_cache", "value_cache", "workspace_buffer",
    "multi_ctas_kv_counter_buffer", "block_tables", "seq_lens", "max_q_len", "max_kv_len",
    "bmm1_scale", "bmm2_scale", "o_sf_scale", "o_sf_vec_size", "o_sf_start_index", "batch_size",
    "window_left", "sparse_mla_top_k", "sm_count", "enable_pdl", "workspace_size",
    "attention_sinks", "cum_seq_lens_q", "key_block_scales", "value_block_scales",
    "skip_softmax_threshold_scale_factor", "uses_shared_paged_kv_idx", "lse", "lse_scale",
    "lse_stride_tokens", "lse_stride_heads", "enable_block_sparse_attention",
    "sparse_mla_top_k_lens", "bf16q_fp8kv_transform_mode", "use_fp16_softmax",
)  # fmt: skip


@pytest.fixture(autouse=True)
def single_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MULTI_WAVE, raising=False)


def call_of(batch: int, **changes: Any) -> Call:
    """A sparse MLA decode of 64 heads with LSE on 148 SMs."""
    return Call("decode", 64, batch, 1, True, 148, dims=SPARSE_MLA)._replace(**changes)


def native_of(call: Call, size: int = SIZE) -> NativeCall:
    return NativeCall(
        batch=call.batch,
        heads=call.heads,
        q_len=call.q_len,
        lse=call.lse,
        sm_count=call.sm_count,
        workspace_bytes=size,
        workspace_address=4096,
        dims=call.dims or SPARSE_MLA,
        max_kv_len=65_536,
        sum_q=call.batch * call.q_len,
        counter_buffer_bytes=call.counter_buffer_bytes,
    )


def arguments(call: Call, **changes: Any) -> dict[str, Any]:
    """The native arguments of a call, every tensor that may be sliced among them."""
    tokens = call.batch * call.q_len
    named: dict[str, Any] = dict.fromkeys(PARAMETERS)
    named |= {
        "out": torch.empty(call.batch, call.q_len, call.heads, 512, device="meta"),
        "query": torch.empty(tokens, call.heads, 576, device="meta"),
        "key_cache": torch.empty(16, 1, 64, 576, device="meta"),
        "workspace_buffer": torch.empty(0, dtype=torch.uint8),
        "block_tables": torch.empty(call.batch, call.q_len, 2048, device="meta"),
        "seq_lens": torch.empty(call.batch, device="meta"),
        "lse": torch.empty(tokens, call.heads, device="meta"),
        "sparse_mla_top_k_lens": torch.empty(tokens, device="meta"),
        "max_q_len": call.q_len,
        "batch_size": call.batch,
        "enable_pdl": True,
        "sm_count": call.sm_count,
    }
    return named | changes


def cut(
    call: Call,
    layout: Layout = LAYOUTS["B"],
    parameters: Sequence[str] = PARAMETERS,
    **changes: Any,
) -> list[dict[str, Any]]:
    """The pieces of a call, their arguments by name."""
    args = tuple((arguments(call) | changes).values())
    pieces = Splitter(parameters).pieces(call, native_of(call), layout, args)
    return [dict(zip(parameters, piece, strict=True)) for piece in pieces]


# -- how many rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "batch", "rows"),
    [
        ("B", 12_288, [3_072] * 4),
        ("B", 3_081, [1_541, 1_540]),
        ("B", 2 * 3_080, [3_080] * 2),
        ("B", 2 * 3_080 + 1, [2_054, 2_054, 2_053]),
        ("C", 12_288, [3_072] * 4),
        ("C", 3_145, [1_573, 1_572]),
    ],
)
def test_pieces_are_few_and_near_equal(layout: str, batch: int, rows: list[int]) -> None:
    assert piece_rows(call_of(batch), LAYOUTS[layout], SIZE, 0) == rows
    assert sum(rows) == batch


@pytest.mark.parametrize("held", [80, 100, 3_080])
@pytest.mark.parametrize("batch", [12_288, 12_289, 65_535, 100_003])
def test_no_piece_comes_down_to_the_split_kv_path(batch: int, held: int) -> None:
    """148 SMs: up to 74 rows may use scratch, and add up in another order."""
    # 8 * 64 * 256 bytes a row behind 8 MiB and 1 MiB.
    rows = piece_rows(call_of(batch), LAYOUTS["B"], 9 * MIB + 131_072 * held, 0)
    assert sum(rows) == batch
    assert len(rows) == -(-batch // held)
    assert rows == sorted(rows, reverse=True)
    assert rows[0] - rows[-1] <= 1
    assert 74 < rows[-1] <= rows[0] <= held


def test_rows_that_cannot_stay_above_it_are_refused() -> None:
    # 149 rows are two pieces of 75 and 74.
    size = 9 * MIB + 131_072 * 75
    with pytest.raises(UnsplittableError, match="fewer than 75 rows, and use scratch"):
        piece_rows(call_of(149), LAYOUTS["B"], size, 0)


def test_multi_wave_mode_splits_kv_up_to_two_rows_per_sm(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 9 * MIB + 131_072 * 296
    assert piece_rows(call_of(592), LAYOUTS["B"], size, 0) == [296, 296]
    monkeypatch.setenv(MULTI_WAVE, "1")
    with pytest.raises(UnsplittableError, match="fewer than 297 rows, and use scratch"):
        piece_rows(call_of(592), LAYOUTS["B"], size, 0)
    assert piece_rows(call_of(594), LAYOUTS["B"], size + 131_072, 0) == [297, 297]


def test_call_on_the_split_kv_path_may_be_cut_into_such() -> None:
    """Layout C, 12 MiB, 74 rows: 1,835,008 bytes are left of the 9,775,104 that scratch takes."""
    rows = piece_rows(call_of(74), LAYOUTS["C"], 12 * MIB, 0)
    assert sum(rows) == 74
    assert max(rows) - min(rows) <= 1
    assert len(rows) > 1


def test_nothing_fits_where_no_row_does() -> None:
    with pytest.raises(UnsplittableError, match="not even a single row fits"):
        piece_rows(call_of(74), LAYOUTS["C"], MIB, 0)


def test_alignment_counts() -> None:
    """8 bytes of padding: what fits to the byte at a multiple of 16 does not behind it."""
    assert piece_rows(call_of(2 * 3_080), LAYOUTS["B"], SIZE, 0) == [3_080] * 2
    assert piece_rows(call_of(2 * 3_080), LAYOUTS["B"], SIZE, 8) == [2_054, 2_053, 2_053]


# -- what a piece is -------------------------------------------------------------------------------


@pytest.mark.parametrize("q_len", [1, 2, 4])
def test_tensors_are_sliced_by_rows_or_tokens(q_len: int) -> None:
    call = call_of(3_081, q_len=q_len)
    whole = arguments(call)
    first, second = cut(call, **whole)
    for piece, start, batch in ((first, 0, 1_541), (second, 1_541, 1_540)):
        assert (piece["batch_size"], piece["enable_pdl"]) == (batch, False)
        for name in ("out", "block_tables", "seq_lens"):
            assert piece[name].shape == (batch, *whole[name].shape[1:])
            offset = start * whole[name].stride(0)
            assert piece[name].storage_offset() == offset
        for name in ("query", "lse", "sparse_mla_top_k_lens"):
            assert piece[name].shape == (batch * q_len, *whole[name].shape[1:])
            assert piece[name].storage_offset() == start * q_len * whole[name].stride(0)
        sliced = {"batch_size", "enable_pdl", "out", "query", "block_tables", "seq_lens", "lse"}
        for name in set(PARAMETERS) - sliced - {"sparse_mla_top_k_lens"}:
            assert piece[name] is whole[name]


def test_what_was_not_given_is_not_sliced() -> None:
    pieces = cut(call_of(12_288), lse=torch.empty(12_288, 64), sparse_mla_top_k_lens=None)
    assert [piece["sparse_mla_top_k_lens"] for piece in pieces] == [None] * 4


def test_the_counter_of_this_call_counts() -> None:
    """The shape was met with a counter too small; this call brings one that will do."""
    call = call_of(12_288, counter_buffer_bytes=4)
    native = native_of(call)._replace(counter_buffer_bytes=4 * 64 * 12_288)
    args = tuple(arguments(call).values())
    assert len(Splitter(PARAMETERS).pieces(call, native, LAYOUTS["C"], args)) == 4


# -- what is refused -------------------------------------------------------------------------------


def tensor() -> torch.Tensor:
    """One that cannot be compared: where it is on a GPU, that would ask CUDA for its values."""
    return torch.empty(3, device="meta")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("cum_seq_lens_q", tensor(), "query lengths of their own"),
        ("out_scale_factor", tensor(), "its output is FP4"),
        ("enable_block_sparse_attention", True, "its block tables are block-sparse"),
    ],
)
def test_rules_by_argument(name: str, value: object, reason: str) -> None:
    with pytest.raises(UnsplittableError, match=reason) as refused:
        cut(call_of(12_288), **{name: value})
    assert f"({name})" in str(refused.value)


@pytest.mark.parametrize("value", [tensor(), True, 0, 1, 0.5, "mode"], ids=repr)
def test_parameter_of_a_newer_release_is_refused_if_given(value: object) -> None:
    names = (*PARAMETERS, "tree_mask")
    with pytest.raises(UnsplittableError, match="what tree_mask means for a piece is not known"):
        cut(call_of(12_288), parameters=names, tree_mask=value)


@pytest.mark.parametrize("value", [None, False])
def test_parameter_of_a_newer_release_that_is_off_is_no_matter(value: object) -> None:
    pieces = cut(call_of(12_288), parameters=(*PARAMETERS, "tree_mask"), tree_mask=value)
    assert [piece["tree_mask"] for piece in pieces] == [value] * 4


@pytest.mark.parametrize(
    "name", ["out", "query", "block_tables", "seq_lens", "lse", "sparse_mla_top_k_lens"]
)
@pytest.mark.parametrize("lines", [1, 12_287, 12_288 * 3])
def test_tensor_of_neither_rows_nor_tokens_is_refused(name: str, lines: int) -> None:
    call = call_of(12_288, q_len=2)
    other = torch.empty(lines, 64, 576, device="meta")
    with pytest.raises(UnsplittableError, match=f"{name} has {lines:,} lines for 12,288 rows"):
        cut(call, **{name: other})


def test_every_parameter_of_the_installed_release_is_understood() -> None:
    signature = installed_contract().signatures["trtllm_paged_attention_decode"]
    assert set(signature) <= set(PARAMETERS)
