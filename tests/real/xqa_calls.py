"""XQA through FlashInfer's own Python, as on Hopper, over a native module that only looks.

Runs under any interpreter that has FlashInfer, without pytest: `python xqa_calls.py BOARD`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# XQA's flags are asked for by architecture, before its module is built.
os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"

from flashinfer_calls import MIB, PUBLIC_CALLS, Shape, workspace
from plain import plain
from probed_board import events, probed, slots
from xqa_stand_in import HEADS, KV_HEADS, PAGE, Native, Step, xqa_stands_in, zeroed

from ws_guard import contract
from ws_guard.contract import XqaContract, installed_xqa
from ws_guard.launcher import build, installed_flashinfer_root, on_cpu
from ws_guard.probe import WorkspaceOverflowError
from ws_guard.sizing import XQA_OPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

SEMAPHORES = 8 * MIB
OP = XQA_OPS["xqa"]
#: An H200.
SM_COUNT = 132


class Told(NamedTuple):
    """What a slot tells: [shape, eager calls] by row, events, and what went wrong."""

    rows: list[Any]
    events: list[Any]
    probe_errors: int
    problems: list[str]
    warnings: list[str]
    workspaces: list[str]


def tell(path: str) -> Told:
    (slot,) = slots(path)
    document = slot.document
    rows = [[row.shape._asdict() | {"first_seen_ns": 0}, row.eager] for row in slot.rows]
    return Told(
        rows,
        events(path),
        slot.probe_errors,
        list(document["problems"]),
        list(document.get("warnings", [])),
        list(document["workspaces"]),
    )


@contextlib.contextmanager
def freshly_probed(path: str, action: str = "observe") -> Iterator[Any]:
    """The probe, and FlashInfer's caches empty, so that every module is loaded under it."""
    import flashinfer.xqa as _  # noqa: F401 - its loader is cached

    from ws_guard.launcher.cpu import _forget_results

    _forget_results()
    with probed(path, action) as probe:
        yield probe


def counted(path: str, native: Native) -> dict[str, Any]:
    """Two shapes in turn and in a row; what reached the native function."""
    buffer = zeroed(64 * MIB)
    with freshly_probed(path):
        one, other = Step(16).call(buffer), Step(32, q_len=2).call(buffer)
        for call in (*[one] * 10, *[one, other] * 10):
            call()
        (first, *_) = native.calls
        reached = {
            "semaphores": [first["semaphores"].data_ptr() - buffer.data_ptr()],
            "scratch": [first["scratch"].data_ptr() - buffer.data_ptr(), first["scratch"].numel()],
            "calls": len(native.calls),
        }
        return {"told": tell(path), "reached": reached}


def overrun(path: str, native: Native, action: str) -> dict[str, Any]:
    """What an H200 was seen to overwrite: 294,912 bytes of scratch where there are 4,096."""
    buffer = zeroed(SEMAPHORES + 4096)
    with freshly_probed(path, action):
        Step(1, PAGE).call(buffer)()  # one CTA for each sequence: no scratch
        before, error = len(native.calls), None
        try:
            Step(1, 32_768).call(buffer)()
        except WorkspaceOverflowError as raised:
            error = {"text": str(raised), **vars(raised)}
        made = len(native.calls) - before
        Step(16).call(buffer)()  # the worker lives on: 16 x 8 KV heads leave no SM idle
        return {"told": tell(path), "made": made, "error": error, "after": len(native.calls)}


def alternating(path: str, native: Native) -> dict[str, Any]:
    """Two modules in turn, of the same batch and KV heads."""
    buffer = zeroed(64 * MIB)
    with freshly_probed(path):
        calls = [Step(16, head_dim=dim).call(buffer) for dim in (64, 128)]
        for _ in range(10):
            for call in calls:
                call()
        return {"told": tell(path), "specs": native.specs[-2:]}


def two_buffers(path: str, semaphores: torch.Tensor) -> Told:
    """`flashinfer.xqa.xqa` with semaphores of their own, and 1 MiB of scratch."""
    import torch
    from flashinfer.xqa import xqa

    scratch = zeroed(MIB)
    cache = torch.empty(4, PAGE, KV_HEADS, 128, dtype=torch.bfloat16)
    query = torch.empty(1, 1, HEADS, 128, dtype=torch.bfloat16)
    with freshly_probed(path):
        for _ in range(6):
            xqa(
                query,
                cache,
                cache,
                torch.zeros(1, 512, dtype=torch.int32),
                torch.full((1, 1), 32_768, dtype=torch.int32).view(torch.uint32),
                torch.empty_like(query),
                scratch,
                semaphores,
                KV_HEADS,
                PAGE,
            )
        return tell(path)


def ragged(path: str) -> Told | None:
    """Requests with 3, 1 and 2 tokens, then 3, 3 and 3; None where XQA knows no ragged query."""
    import inspect

    import torch
    from flashinfer.decode import xqa_batch_decode_with_kv_cache as call

    if "q_cu_seq_lens" not in inspect.signature(call).parameters:
        return None

    class OnCard(torch.Tensor):
        """FlashInfer wants the offsets on the device, and looks no further."""

        is_cuda = True

    tensors, buffer = Step(3, 32_768, q_len=3).tensors(), zeroed(SEMAPHORES + 4096)
    with freshly_probed(path):
        # 8 MiB + 4,096: the scratch of three tokens each does not fit, that of fewer may.
        for lengths in ([3, 1, 2], [3, 3, 3], [3, 1, 2]):
            offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            total = sum(lengths)
            call(
                workspace_buffer=buffer,
                **tensors
                | {
                    "query": torch.empty(total, HEADS, 128, dtype=torch.bfloat16),
                    "mask": torch.zeros(total, 2, dtype=torch.uint16),
                    "q_cu_seq_lens": offsets.as_subclass(OnCard),
                },
            )
        return tell(path)


def not_understood(path: str) -> Told:
    """An XQA whose source says something else; trtllm-gen's decode beside it."""
    original = contract.installed_xqa
    known = installed_xqa()
    contract.installed_xqa = lambda: XqaContract(known.release, {}, {OP: "it says otherwise"})
    try:
        with freshly_probed(path):
            xqa = Step(16).call(zeroed(64 * MIB))
            decode = PUBLIC_CALLS["decode"].build(Shape(24, HEADS), workspace(64 * MIB))
            for _ in range(3):
                xqa()
                decode()
            return tell(path)
    finally:
        contract.installed_xqa = original


def provisioned(path: str, native: Native) -> dict[str, Any]:
    """The overrun above on a workspace of ours: XQA gets both of its views from there."""
    import ws_guard

    plan = ws_guard.plan(heads=64, max_num_batched_tokens=64, flashinfer="0.6.15", sm_count=132)
    buffer = zeroed(SEMAPHORES + 4096)
    with freshly_probed(path, "raise") as probe:
        made = probe.provision(plan, "cpu", workspace_bytes=16 * MIB)
        for _ in range(6):
            Step(1, 32_768).call(buffer)()
        call = native.calls[-1]
        return {
            "told": tell(path),
            "semaphores": call["semaphores"].data_ptr() - made.address,
            "scratch": [call["scratch"].data_ptr() - made.address, call["scratch"].numel()],
            "dtypes": [str(call["semaphores"].dtype), str(call["scratch"].dtype)],
        }


def report(path: str) -> dict[str, Any]:
    """All of it, for the FlashInfer of this interpreter."""
    import flashinfer

    library = build(installed_flashinfer_root())
    with on_cpu(library, sm_count=SM_COUNT, capability=(9, 0)), xqa_stands_in() as native:
        dirty = zeroed(SEMAPHORES)
        dirty[4096] = 1
        return {
            "release": flashinfer.__version__,
            "counted": counted(path, native),
            "overrun": {
                each: overrun(path, native, each) for each in ("observe", "raise", "split")
            },
            "alternating": alternating(path, native),
            "two_buffers": two_buffers(path, zeroed(SEMAPHORES)),
            "dirty": two_buffers(path, dirty),
            "ragged": ragged(path),
            "not_understood": not_understood(path),
            "provisioned": provisioned(path, native),
        }


if __name__ == "__main__":
    assert Path(sys.argv[1]).parent.is_dir()
    print(json.dumps(plain(report(sys.argv[1]))))
