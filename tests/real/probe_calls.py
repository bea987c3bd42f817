"""Runs every public call under the probe and tells what its slot says, beside what happened.

Runs under any interpreter that has FlashInfer, without pytest: `python probe_calls.py BOARD`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from flashinfer_calls import MIB, PUBLIC_CALLS, TOP_K, Shape, workspace
from plain import plain
from probed_board import calls_by_mode, error_of, events, probed, slots
from public_calls import BATCH, HEADS, SM_COUNT, cases

from ws_guard.launcher import Launch, Recorder, build, installed_flashinfer_root, on_cpu
from ws_guard.sizing import (
    DEFAULT_WORKSPACE_BYTES,
    ENTRY_OF_OP,
    LAYOUTS,
    OPS,
    Call,
    carve,
)
from ws_guard.sizing.slabs import external_counter_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ws_guard.board import Shape as BoardShape
    from ws_guard.board import SlotView

#: Bytes that a workspace starts behind a multiple of 16.
MISALIGNED_BY = 8
#: Tokens that the sparse calls select for each query token.
SELECTED = {"sparse_mla": TOP_K, "dsv4": 256}


class Seen(NamedTuple):
    """A call as it was made and launched, and as the slot tells it."""

    call: str
    made: dict[str, Any]
    told: dict[str, Any]


class Refused(NamedTuple):
    """A call that the launcher refused: with and without the probe, and what the slot says."""

    bare: str
    bare_frames: list[str]
    under_probe: str
    frames: list[str]
    events: list[Any]
    stamped: bool
    last_outcome: int


class Report(NamedTuple):
    release: str
    layout: str
    contract: str
    seen: list[Seen]
    refused: Refused
    #: Events after a call whose KV cannot fill the scratch, and after one whose KV does.
    short_kv: list[Any]
    long_kv: list[Any]
    tuning: dict[str, Any]
    elsewhere: dict[str, Any]
    probe_errors: int
    restored: bool
    problems: list[str]


def see(path: str, name: str, shape: Shape, recorder: Recorder, buffer: torch.Tensor) -> Seen:
    """Make one call; what was launched, and the slot's last call."""
    (before,) = slots(path)
    call = PUBLIC_CALLS[name].build(shape, buffer)
    call()
    launch = recorder.last()
    assert launch is not None
    (slot,) = slots(path)
    counts = calls_by_mode(before)
    assert calls_by_mode(slot) == {**counts, "eager": counts["eager"] + 1}
    op = OPS[PUBLIC_CALLS[name].entry]
    made = {"op": op, **shape._asdict(), "workspace_bytes": buffer.numel(), "sm_count": SM_COUNT}
    made["top_k"] = SELECTED.get(name, 0)
    carved = _carved_buffer(name, call, buffer)
    made |= {"address_mod_16": carved.data_ptr() % 16, "offsets": _real_offsets(launch, carved)}
    return Seen(name, made, _told(slot, slot.calls[-1].shape))


def _told(slot: SlotView, shape: BoardShape) -> dict[str, Any]:
    op = slot.document["ops"][shape.op]
    call = Call(
        ENTRY_OF_OP[op],
        shape.heads,
        shape.batch,
        shape.q_len,
        shape.lse,
        shape.sm_count,
        sum_q=shape.sum_q,
        counter_buffer_bytes=shape.counter_buffer_bytes,
    )
    layout = LAYOUTS[slot.document["layout"]]
    if call.entry in layout.external_counter:
        # Its size is known, and it is one that the launcher accepts.
        assert shape.counter_buffer_bytes is not None
        assert shape.counter_buffer_bytes >= external_counter_bytes(call)
    answer = carve(call, layout, shape.workspace_bytes, shape.address_mod_16)
    names = ("batch", "heads", "q_len", "lse", "workspace_bytes", "sm_count", "top_k")
    names += ("address_mod_16",)
    return {"op": op, **{n: getattr(shape, n) for n in names}, "offsets": answer.offsets}


def _carved_buffer(name: str, call: Any, buffer: torch.Tensor) -> torch.Tensor:
    """The buffer that the launcher carves.

    The prefill wrapper hands over its 8 MiB of integers, with the size of the workspace that it
    was given (all three releases).
    """
    if name != "prefill_wrapper":
        return buffer
    integers: torch.Tensor = call.func.__self__._int_workspace_buffer
    return integers


def _real_offsets(launch: Launch, buffer: torch.Tensor) -> dict[str, int]:
    """Where the launcher put the slabs that stand inside the workspace."""
    start, end = buffer.data_ptr(), buffer.data_ptr() + buffer.numel()
    slabs = ("counter", "softmax_stats", "scratch")
    addresses = {slab: getattr(launch, slab) for slab in slabs}
    return {slab: at - start for slab, at in addresses.items() if start <= at <= end}


def refuse(path: str, buffer: torch.Tensor) -> Refused:
    """vLLM's step that dies: 12,288 rows of 64 heads with LSE in the default workspace."""
    call = PUBLIC_CALLS["sparse_mla"].build(Shape(12_288, lse=True), buffer)
    with probed(path):
        raised = error_of(call)
        (slot,) = slots(path)
        told = events(path), slot.last_overflow_ns > slot.attached_ns, slot.calls[-1].outcome
    bare = error_of(call)
    return Refused(repr(bare), _frames(bare), repr(raised), _frames(raised), *told)


def _frames(error: Exception) -> list[str]:
    """Where the frames of an error's traceback stand, except those of the probe."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{f.filename}:{f.name}" for f in frames if "/ws_guard/probe/" not in f.filename]


def overrun(path: str, kv_length: int) -> list[Any]:
    """64 heads, 74 rows, 12 MiB: the launcher accepts, but 9,775,104 bytes of scratch do not fit.

    Layout C leaves 12 MiB - (8 * 64 * 74 * 256 + 1 MiB) = 1,835,008 bytes with LSE; layout B,
    whose counter takes 8 MiB, leaves 4 MiB without.
    """
    with probed(path):
        (slot,) = slots(path)
        shape = Shape(74, 64, lse=slot.document["layout"] == "C")
        call = PUBLIC_CALLS["sparse_mla"].build(shape, workspace(12 * MIB))
        functools.partial(call, max_seq_len=kv_length)()
        return events(path)


def tune(path: str) -> dict[str, Any]:
    """Calls within the autotuner, one of them refused."""
    from flashinfer.autotuner import autotune

    call = PUBLIC_CALLS["decode"].build(Shape(BATCH), workspace(64 * MIB))
    with probed(path):
        with autotune(True):
            call()
            error_of(PUBLIC_CALLS["decode"].build(Shape(BATCH, lse=True), workspace(MIB)))
        call()
        (slot,) = slots(path)
        counts = sorted((row.eager, row.tuning) for row in slot.rows)
        return {"counts": counts, "events": events(path), "errors": slot.probe_errors}


def elsewhere(path: str) -> dict[str, Any]:
    """Calls that go to other backends, up to their compilation, or that Python refuses."""
    import flashinfer.jit.core as core

    names: list[str] = []
    original = core.JitSpec.build_and_load

    def listen(spec: Any) -> Any:
        names.append(spec.name)
        return original(spec)

    core.JitSpec.build_and_load = listen
    os.environ["FLASHINFER_DISABLE_JIT"] = "1"
    try:
        with probed(path):
            refused = [repr(error_of(call)) for call in _other_calls()]
            (slot,) = slots(path)
            return {"built": names, "refused": refused, "rows": len(slot.rows)}
    finally:
        del os.environ["FLASHINFER_DISABLE_JIT"]
        core.JitSpec.build_and_load = original


def _other_calls() -> list[Callable[[], Any]]:
    import torch
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    shape, buffer = Shape(BATCH, HEADS), workspace(64 * MIB)
    decode = PUBLIC_CALLS["decode"].build(shape, buffer)
    mla = PUBLIC_CALLS["sparse_mla"].build(shape, buffer)

    def fa2() -> None:
        wrapper = BatchDecodeWithPagedKVCacheWrapper(buffer, "HND", backend="fa2")
        offsets = torch.arange(BATCH + 1, dtype=torch.int32)
        pages = torch.zeros(BATCH, dtype=torch.int32)
        wrapper.plan(offsets, pages, pages + 1, HEADS, 8, 128, 64, q_data_type=torch.bfloat16)

    return [
        functools.partial(decode, backend="xqa"),
        fa2,
        functools.partial(mla, kv_lora_rank=500),
        functools.partial(mla, backend="no such backend"),
    ]


def problems(path: str) -> list[str]:
    """What an install of this late moment has to complain of."""
    with probed(path):
        (slot,) = slots(path)
        return list(slot.document["problems"])


def untouched() -> Callable[[], bool]:
    """A check that what the probe replaces is again what it was."""
    import flashinfer.jit.core as core

    before = vars(core.JitSpec)["build_and_load"], list(sys.meta_path)
    return lambda: (vars(core.JitSpec)["build_and_load"], list(sys.meta_path)) == before


def report(path: str) -> Report:
    """All of it, for the FlashInfer of this interpreter."""
    import flashinfer

    with on_cpu(build(installed_flashinfer_root()), sm_count=SM_COUNT) as recorder:
        restored = untouched()
        buffer = workspace(DEFAULT_WORKSPACE_BYTES)
        other = workspace(64 * MIB)[MISALIGNED_BY:]
        with probed(path):
            seen = [see(path, *case, recorder, buffer) for case in cases()]
            # The wrappers insist on an aligned workspace.
            free = [(name, shape) for name, shape in cases() if "wrapper" not in name]
            seen += [see(path, *case, recorder, other) for case in free]
            (slot,) = slots(path)
        return Report(
            flashinfer.__version__,
            slot.document["layout"],
            slot.document["contract"],
            seen,
            refuse(path, buffer),
            overrun(path, 100),
            overrun(path, TOP_K),
            tune(path),
            elsewhere(path),
            slot.probe_errors,
            restored(),
            problems(path),
        )


if __name__ == "__main__":
    print(json.dumps(plain(report(sys.argv[1]))))
