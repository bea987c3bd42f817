"""The workers of the demonstration: the reported deployment's traffic through real FlashInfer.

Started by `demo`; by hand it shows what raise and split do (docs/GUARD.md). Each worker is a
process of its own, forked once torch and FlashInfer are loaded. It makes vLLM's sparse MLA call, so
that every token of a step is a row: FlashInfer's own Python, its own launcher (or the stand-in),
CPU tensors. It reports each step as a JSON line and then decodes until standard input ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
from pathlib import Path

import ws_guard
from ws_guard.foreign import Tensor

HEADS = 64
TOP_K = 2048
PAGE, PAGES, KV_WIDTH = 64, 4, 576
SEQ_LEN = 128
PREFILL_STEPS = (512, 3_080, 3_081, 12_288)
DECODE_ROWS = 24
#: The stand-in computes attention for real: larger steps are carved, not computed.
_COMPUTED_ROWS = 512
_DECODE_PERIOD_SECONDS = 0.5


def main() -> int:
    """Fork the workers and wait for them; 1 if one of them failed."""
    options = _options()
    # Loaded here, once; `install` in the workers finds FlashInfer loaded and its ops not yet.
    import flashinfer.mla  # noqa: F401 - for the workers
    import torch

    torch.set_num_threads(1)
    children = [_fork(options, rank) for rank in range(options.workers)]
    return max(int(os.waitpid(child, 0)[1] != 0) for child in children)


def _fork(options: argparse.Namespace, rank: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _work(options, rank)
    except BrokenPipeError:
        os._exit(1)  # nobody listens any more
    except BaseException as error:  # noqa: BLE001 - a child must not run on as its parent
        print(f"demo worker {rank}: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def _work(options: argparse.Namespace, rank: int) -> None:
    """Attach, run the steps, decode until told to stop."""
    plan = ws_guard.plan(
        heads=HEADS,
        tp=8,
        dcp=8,
        max_num_batched_tokens=16_384,
        workspace_bytes=options.workspace_bytes,
    )
    probe = ws_guard.install(plan=plan, board=options.board, engine="0", rank=rank)
    with _native(options.library):
        _say("attached")
        workspace = _workspace(options.workspace_bytes)
        for rows in PREFILL_STEPS:
            _step(rows, workspace, computed=options.library is None)
        _say("finished")
        while not select.select([sys.stdin], [], [], _DECODE_PERIOD_SECONDS)[0]:
            _call(DECODE_ROWS, workspace, "cpu")
    # The demonstration is over: nothing of it stays on the board as evidence.
    probe.uninstall()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--board", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--workspace-bytes", type=int, required=True)
    parser.add_argument("--library", type=Path)
    return parser.parse_args()


def _native(library: Path | None) -> contextlib.AbstractContextManager[object]:
    from ws_guard import contract, launcher

    if library is not None:
        return launcher.on_cpu(library)
    from ws_guard import reference

    found = contract.installed_contract()
    assert found.layout is not None, "demo checked the contract"  # noqa: S101 - for type checkers
    return launcher.on_cpu_with(reference.NativeModule(found.layout, found.signatures))


def _workspace(size: int) -> Tensor:
    import torch

    # Engines hand over a zeroed buffer. No kernel reads this one: its pages stay untouched, and
    # eight workers with gigabytes each cost no memory.
    return torch.empty(size, dtype=torch.uint8)


def _step(rows: int, workspace: Tensor, *, computed: bool) -> None:
    device = "meta" if computed and rows > _COMPUTED_ROWS else "cpu"
    try:
        _call(rows, workspace, device)
    except RuntimeError as error:
        _say(str(rows), refused=str(error))
    else:
        _say(str(rows))


def _call(rows: int, workspace: Tensor, device: str) -> None:
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


def _say(what: str, *, refused: str | None = None) -> None:
    """One event: a line short enough that those of eight workers do not mix in the pipe."""
    os.write(1, json.dumps({"what": what, "refused": refused}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
