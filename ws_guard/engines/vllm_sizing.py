"""vLLM's sparse MLA workspace on releases that do not size it themselves (0.25.0 to 0.29.0).

The size, the place and the moment are those of vLLM 0.30.0: in the metadata builder, before any
graph is captured, because a captured graph keeps the buffer's address. `module` is vLLM's own.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from ws_guard.foreign import Device, Foreign
from ws_guard.sizing.layouts import MIB

from .gpu import zeroed_bytes
from .sites import STATS_BYTES, STATS_GUARD_BYTES, STATS_Q_ROUNDING
from .vllm_sites import DEFAULT_BYTES, ENV

HOLDER = "_fi_sparse_workspace"
#: Without it a release has no sizing of its own.
_OWN_SIZING = "compute_trtllm_sparse_mla_workspace_bytes"


class Step(NamedTuple):
    """The largest step of a sparse MLA worker: query heads per rank, DCP size, tokens."""

    heads_per_rank: int
    dcp: int
    tokens: int

    @property
    def token_bytes(self) -> int:
        """Bytes of the stats slab for one token of the step."""
        return STATS_BYTES * self.heads_per_rank * self.dcp * STATS_Q_ROUNDING

    @property
    def workspace_bytes(self) -> int:
        """The size that vLLM computes from 0.30.0 on; without DCP no slab is carved."""
        if self.dcp <= 1:
            return DEFAULT_BYTES
        return DEFAULT_BYTES + self.tokens * self.token_bytes + STATS_GUARD_BYTES


class Memory(NamedTuple):
    """GPU memory when the workspace is made, in bytes; vLLM will still take `spoken_for`."""

    free: int
    total: int
    spoken_for: int

    @property
    def left(self) -> int:
        """What nobody else wants."""
        return max(0, self.free - self.spoken_for)


def sizes_itself(module: Foreign) -> bool:
    """Whether this release sizes the workspace."""
    return hasattr(module, _OWN_SIZING)


def existing_bytes(module: Foreign) -> int | None:
    """The workspace's size, None where vLLM has not made it yet."""
    buffer = getattr(module, HOLDER, None)
    return None if buffer is None else int(buffer.nbytes)


def foreseen_bytes(step: Step, mode: str, itself: bool) -> int:
    """The size that the workspace is going to have, if GPU memory allows. `mode`: auto or off."""
    explicit = os.environ.get(ENV)
    if explicit:
        return int(explicit)
    return step.workspace_bytes if itself or mode == "auto" else DEFAULT_BYTES


def size_workspace(
    module: Foreign,
    device: Device,
    step: Step,
    memory: Memory | None,
    *,
    sleeps: bool,
) -> str:
    """Give the module a workspace for `step`; returns what there is to complain of, or "".

    `memory` is None where there is no GPU. With sleep mode nothing is allocated: what is made now
    is thrown away when the engine sleeps, the zeroed counter with it.
    """
    wanted, existing = step.workspace_bytes, existing_bytes(module)
    explicit = os.environ.get(ENV)
    if explicit:
        return _judge_explicit(int(explicit), step)
    if step.dcp <= 1 or (existing is not None and existing >= wanted):
        return ""
    if sleeps:
        return (
            f"the sparse MLA workspace needs {wanted:,} bytes, but with sleep mode ws_guard does "
            f"not size it: set {ENV}={wanted}"
        )
    if memory is not None and memory.left < wanted:
        return _too_little_memory(step, memory)
    return _allocate(module, device, step, memory)


def _judge_explicit(given: int, step: Step) -> str:
    wanted = step.workspace_bytes
    if given >= wanted:
        return ""
    return (
        f"{ENV}={given} is respected, but the largest step needs {wanted} bytes of sparse MLA "
        f"workspace: set {ENV}={wanted}"
    )


def _allocate(module: Foreign, device: Device, step: Step, memory: Memory | None) -> str:
    # int8 and zeroed, as vLLM makes it: the counter inside must start at zero.
    buffer = zeroed_bytes(step.workspace_bytes, device)
    if buffer is None:
        return _too_little_memory(step, memory or Memory(0, 0, 0))
    setattr(module, HOLDER, buffer)
    return ""


def _too_little_memory(step: Step, memory: Memory) -> str:
    wanted, missing = step.workspace_bytes, step.workspace_bytes - memory.left
    tokens = max(0, memory.left - DEFAULT_BYTES - STATS_GUARD_BYTES) // step.token_bytes
    remedies = []
    if memory.total:
        # In hundredths, upwards: the granularity in which people set it.
        hundredths = -(-missing * 100 // memory.total)
        # Nobody has a whole GPU to give away: then only smaller steps help.
        if hundredths < 100:
            remedies.append(f"--gpu-memory-utilization by {hundredths / 100:.2f}")
    remedies.append(f"--max-num-batched-tokens by {step.tokens - tokens:,} to {tokens:,}")
    return (
        f"the sparse MLA workspace needs {wanted:,} bytes, {memory.left:,} are left on the GPU "
        f"({missing // MIB + 1:,} MiB short): vLLM's own buffer stays; lower "
        + " or ".join(remedies)
    )
