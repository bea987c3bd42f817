"""One worker of the demonstration: the reported deployment's traffic through real FlashInfer.

Started by `demo`, never by hand. It makes vLLM's sparse MLA call, so that every token of a step is
a row: FlashInfer's own Python, its own launcher (or the stand-in), CPU tensors. It reports each
step as a JSON line and then decodes until its standard input ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import sys
from pathlib import Path
from typing import Any

import ws_guard

HEADS = 64
TOP_K = 2048
PAGE, PAGES, KV_WIDTH = 64, 4, 576
SEQ_LEN = 128
PREFILL_STEPS = (512, 3_080, 3_081, 12_288)
DECODE_ROWS = 24
#: The stand-in computes attention for real: larger steps are carved, not computed.
_COMPUTED_ROWS = 512
_DECODE_PERIOD_SECONDS = 0.1


def main() -> None:
    """Attach, run the steps, decode until told to stop."""
    options = _options()
    plan = ws_guard.plan(
        heads=HEADS,
        tp=8,
        dcp=8,
        max_num_batched_tokens=16_384,
        workspace_bytes=options.workspace_bytes,
    )
    probe = ws_guard.install(plan=plan, board=options.board, engine="0", rank=options.rank)
    with _native(options.library):
        _say(attached=True)
        workspace = _workspace(options.workspace_bytes)
        for rows in PREFILL_STEPS:
            _step(rows, workspace, computed=options.library is None)
        _say(finished=True)
        while not select.select([sys.stdin], [], [], _DECODE_PERIOD_SECONDS)[0]:
            _call(DECODE_ROWS, workspace, "cpu")
    # The demonstration is over: nothing of it stays on the board as evidence.
    probe.uninstall()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--board", required=True)
    parser.add_argument("--rank", required=True)
    parser.add_argument("--workspace-bytes", type=int, required=True)
    parser.add_argument("--library", type=Path)
    return parser.parse_args()


def _native(library: Path | None) -> contextlib.AbstractContextManager[object]:
    from ws_guard import contract, launcher

    if library is not None:
        return launcher.on_cpu(library)
    from ws_guard import reference

    found = contract.installed_contract()
    assert found.layout is not None, "demo checked the contract"  # noqa: S101
    return launcher.on_cpu_with(reference.NativeModule(found.layout, found.signatures))


def _workspace(size: int) -> Any:  # noqa: ANN401 - a tensor
    import torch

    # Engines hand over a zeroed buffer. No kernel reads this one: its pages stay untouched, and
    # eight workers with gigabytes each cost no memory.
    return torch.empty(size, dtype=torch.uint8)


def _step(rows: int, workspace: Any, *, computed: bool) -> None:  # noqa: ANN401 - a tensor
    device = "meta" if computed and rows > _COMPUTED_ROWS else "cpu"
    try:
        _call(rows, workspace, device)
    except RuntimeError as error:
        _say(rows=rows, refused=str(error))
    else:
        _say(rows=rows, refused=None)


def _call(rows: int, workspace: Any, device: str) -> None:  # noqa: ANN401 - a tensor
    """vLLM's call under DCP: one query token per row, its top-k tokens, the LSE asked for."""
    import torch
    from flashinfer.mla import trtllm_batch_decode_with_kv_cache_mla

    indices = torch.arange(TOP_K, dtype=torch.int32, device=device) % (PAGE * PAGES)
    trtllm_batch_decode_with_kv_cache_mla(
        query=torch.zeros(1, 1, HEADS, KV_WIDTH, dtype=torch.bfloat16, device=device).expand(
            rows, 1, HEADS, KV_WIDTH
        ),
        kv_cache=torch.zeros(PAGES, PAGE, KV_WIDTH, dtype=torch.bfloat16, device=device),
        workspace_buffer=workspace,
        qk_nope_head_dim=128,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        block_tables=indices.expand(rows, 1, TOP_K),
        seq_lens=torch.full((rows,), SEQ_LEN, dtype=torch.int32, device=device),
        max_seq_len=SEQ_LEN,
        sparse_mla_top_k=TOP_K,
        bmm1_scale=0.1,
        backend="trtllm-gen",
        return_lse=True,
    )


def _say(**event: object) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
