"""A decode step of 64 query and 8 KV heads that FlashInfer really runs through XQA."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ws_guard.board import Board, Row, SlotReader, SlotView, list_slots

MIB = 1 << 20
HEADS, KV_HEADS, HEAD_DIM, PAGE = 64, 8, 128, 64


class Decode:
    """The tensors of a step: `batch` rows that each see `length` tokens, bf16."""

    def __init__(self, batch: int, length: int, seed: int = 0) -> None:
        import torch

        generator = torch.Generator("cuda").manual_seed(seed)
        pages = length // PAGE
        pool = max(64, min(4096, batch * pages))

        def normal(*shape: int) -> Any:
            options: Any = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
            return torch.randn(*shape, **options)

        self.query = normal(batch, HEADS, HEAD_DIM)
        self.cache = normal(pool, KV_HEADS, PAGE, HEAD_DIM), normal(pool, KV_HEADS, PAGE, HEAD_DIM)
        table = torch.arange(batch * pages, device="cuda", dtype=torch.int32) % pool
        self.table = table.view(batch, pages)
        self.lengths = torch.full((batch,), length, device="cuda", dtype=torch.int32)
        self.length = length
        self.out = torch.empty_like(self.query)

    def run(self, workspace: Any, rows: slice = slice(None)) -> Any:
        """Decode some rows of the step."""
        import flashinfer.decode

        return flashinfer.decode.trtllm_batch_decode_with_kv_cache(
            query=self.query[rows],
            kv_cache=self.cache,
            workspace_buffer=workspace,
            block_tables=self.table[rows],
            seq_lens=self.lengths[rows],
            max_seq_len=self.length,
            bmm1_scale=HEAD_DIM**-0.5,
            bmm2_scale=1.0,
            kv_layout="HND",
            out=self.out[rows],
        )


def buffer(size: int = 64 * MIB) -> Any:
    """A workspace as FlashInfer asks for it: zeroed."""
    import torch

    return torch.zeros(size, dtype=torch.uint8, device="cuda")


def read_slot(board: Path) -> SlotView:
    """The one slot of a board now."""
    fd = os.open(board, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (name,) = list_slots(fd)[0]
        return SlotReader(name).read(Board(str(board)), fd)
    finally:
        os.close(fd)


def counts(rows: list[Row]) -> dict[int, tuple[int, int, int]]:
    """(eager, captured, replayed) by batch."""
    return {row.shape.batch: (row.eager, row.captured, row.replayed) for row in rows}
