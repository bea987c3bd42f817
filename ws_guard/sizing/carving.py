"""What the launcher does with a workspace, byte for byte, and what a call needs of it."""

from __future__ import annotations

from typing import NamedTuple

from .call import Call
from .layouts import (
    ALIGNMENT,
    EXTERNAL_COUNTER,
    NATIVE_SLABS,
    XQA_OPS,
    XQA_SEMAPHORE_BYTES,
    Layout,
    Slab,
)
from .scratch import scratch
from .slabs import Scratch, carved_slabs, external_counter_bytes, slab_bytes


class Refusal(NamedTuple):
    """The slab that did not fit: the numbers of FlashInfer's "Buffer overflow" text, in bytes.

    `size`, `alignment` and `available` are None for the external counter: natively it is refused
    by a bare check without numbers.
    """

    slab: str
    size: int | None
    alignment: int | None
    available: int | None


class Carve(NamedTuple):
    """The launcher's answer: where each slab stands (bytes from the start), or what it refused.

    `scratch_available` is what is left for scratch, which nobody checks; None where the entry
    hands no scratch over or the carve was refused.
    """

    ok: bool
    offsets: dict[Slab, int]
    refused: Refusal | None
    scratch_available: int | None


def carve(call: Call, layout: Layout, workspace_bytes: int, address: int = 0) -> Carve:
    """Carve `call` out of `workspace_bytes` bytes at `address` as the launcher would.

    The allocator is `std::align`: it refuses when padding + size exceed what remains, and reports
    the remainder before padding (FlashInfer `allocator.h`, 0.6.8 to 0.7.4). XQA's workspace is
    sliced and never refused: one that ends within the semaphores leaves 0 bytes of scratch.
    """
    if call.entry in XQA_OPS:
        semaphores = min(workspace_bytes, XQA_SEMAPHORE_BYTES)
        slices: dict[Slab, int] = {"counter": 0, "scratch": semaphores}
        return Carve(True, slices, None, workspace_bytes - semaphores)
    short = _short_external_counter(call, layout)
    if short is not None:
        return Carve(False, {}, short, None)
    offsets: dict[Slab, int] = {}
    offset, remaining = 0, workspace_bytes
    for step in layout.steps[call.entry]:
        if step.when == "lse" and not call.lse:
            continue
        size = slab_bytes(step.size, call, layout)
        padding = -(address + offset) % ALIGNMENT
        if padding + size > remaining:
            refusal = Refusal(NATIVE_SLABS[step.slab], size, ALIGNMENT, remaining)
            return Carve(False, {}, refusal, None)
        offsets[step.slab] = offset + padding
        offset += padding + size
        remaining -= padding + size
    return Carve(True, offsets, None, remaining if "scratch" in offsets else None)


def _short_external_counter(call: Call, layout: Layout) -> Refusal | None:
    given = call.counter_buffer_bytes
    if given is None or call.entry not in layout.external_counter:
        return None
    if given >= external_counter_bytes(call):
        return None
    return Refusal(EXTERNAL_COUNTER, None, None, None)


class Need(NamedTuple):
    """Bytes that a call needs inside the workspace: alignment padding, slabs, scratch written."""

    total: int
    slabs: dict[Slab, int]


def need(call: Call, layout: Layout, address: int = 0) -> Need:
    """What `call` needs of a workspace at `address`, whether or not it fits anywhere."""
    if call.entry in XQA_OPS:
        return _need_of_slices(scratch(call, layout))
    sizes = carved_slabs(call, layout)
    offset = 0
    for size in sizes.values():
        offset += -(address + offset) % ALIGNMENT + size
    written = scratch(call, layout)
    if written.bytes:
        offset += -(address + offset) % ALIGNMENT
    slabs: dict[Slab, int] = {
        "counter": sizes.get("counter", 0),
        "softmax_stats": sizes.get("softmax_stats", 0),
        "scratch": written.bytes,
    }
    return Need(offset + written.bytes, slabs)


def _need_of_slices(written: Scratch) -> Need:
    """XQA's scratch begins behind its semaphores, without alignment."""
    slabs: dict[Slab, int] = {
        "counter": XQA_SEMAPHORE_BYTES,
        "softmax_stats": 0,
        "scratch": written.bytes,
    }
    return Need(XQA_SEMAPHORE_BYTES + written.bytes, slabs)
