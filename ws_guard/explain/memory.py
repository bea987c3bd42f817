"""A workspace that there was no room for: GPU memory gone, or vLLM's arena locked too early."""

from __future__ import annotations

from ws_guard.engines.releases import ENGINES
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES
from ws_guard.sizing.layouts import MIB

from .evidence import Evidence
from .finding import Confidence
from .wordings import Fault

#: Messages round to a hundredth of a MiB, from a GiB on to a hundredth of that.
_GIB = 1 << 30


def known_size(size: int | None, evidence: Evidence) -> int | None:
    """The workspace that a rounded size stands for: what was set, else what an engine allocates.

    394 MiB is a size that nothing else has; rounder ones count under the engine that has them.
    """
    if size is None:
        return None
    sizes = [DEFAULT_WORKSPACE_BYTES]
    if evidence.env_bytes:
        sizes.insert(0, evidence.env_bytes)
    engine = ENGINES.get(evidence.engine or "")
    if engine is not None:
        sizes += [
            each for site in engine.sites for each in (site.size_bytes, site.lse_size_bytes) if each
        ]
    rounding = (_GIB if size >= _GIB else MIB) // 100 + 1
    return next((each for each in sizes if abs(each - size) <= rounding), None)


def concerns_workspace(fault: Fault, evidence: Evidence) -> bool:
    """Whether an allocation that failed was that of a workspace, as far as a log can tell."""
    return bool(fault.caller) or known_size(fault.size, evidence) is not None


def out_of_memory(fault: Fault, evidence: Evidence) -> tuple[Confidence, list[str], list[str]]:
    """(confidence, what to set, notes) of a workspace that found no room on its GPU."""
    size = known_size(fault.size, evidence) or fault.size or 0
    sure: Confidence = "exact" if fault.caller else "consistent"
    notes = ["the workspace is allocated on first use, after the KV cache took the memory"]
    if not fault.caller:
        notes.insert(0, f"read as the workspace by its size alone ({size / MIB:.2f} MiB)")
    if fault.available is None:
        return sure, [], [*notes, "not in the log: how much memory was free"]
    short = size - fault.available
    if short <= 0:
        notes.append("the free memory would do: it was in pieces, or other processes took it")
        return sure, ["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"], notes
    notes.append(f"short by {short:,} B ({short / MIB:.2f} MiB)")
    return sure, _less_cache(short, fault, evidence, notes), notes


def _less_cache(short: int, fault: Fault, evidence: Evidence, notes: list[str]) -> list[str]:
    """The share of memory that leaves room, in whole hundredths."""
    flag = "--mem-fraction-static" if evidence.engine == "sglang" else "--gpu-memory-utilization"
    if fault.total and evidence.utilization:
        hundredths = int(round(evidence.utilization * 100, 4) - short * 100 / fault.total)
        return [f"{flag} {max(hundredths, 1) / 100:.2f}"]
    if fault.total:
        notes.append(f"lower {flag} by at least {short / fault.total:.4f}")
    else:
        notes.append(f"lower {flag} so that {short:,} bytes more stay free")
    return []


def locked(fault: Fault, evidence: Evidence) -> tuple[Confidence, list[str], list[str]]:
    """(confidence, what to set, notes) of vLLM's workspace manager, asked for more once locked."""
    notes = [
        (
            f"asked for by {fault.caller or 'somebody'} after vLLM had locked the arena's size in "
            "warm-up: no variable makes it larger then"
        )
    ]
    size = known_size(fault.size, evidence)
    prefill = "ragged" in fault.caller or "flashinfer" in fault.caller
    if size is not None and not fault.available:
        notes.append(
            f"{size:,} bytes are FlashInfer's whole workspace: its backend first ran after warm-up"
        )
    if prefill or size is not None:
        notes.append(
            "another prefill backend needs no such workspace; later releases allocate early"
        )
        return (
            "exact" if prefill else "consistent",
            ["--attention-config.mla_prefill_backend FLASH_ATTN"],
            notes,
        )
    if fault.size is None:
        return "unsolved", [], [*notes, "the message gives no sizes"]
    notes.append("it is no workspace of FlashInfer's: see what that code allocates")
    return "consistent", [], notes
