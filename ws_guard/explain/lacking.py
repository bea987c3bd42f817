"""What a log lacks, and how to hand it over: whatever stands before a log is read with it."""

from __future__ import annotations

from collections.abc import Collection

#: What is told of a launch or of a release, and how it may be written.
_WRITTEN = {
    "tp": "tp=8",
    "dcp": "dcp=8",
    "the tokens of a step": "max_num_batched_tokens=16384",
    "FlashInfer's version or the line of allocator.h": "flashinfer-python==0.6.14",
}


def lacking(names: Collection[str]) -> list[str]:
    """A note on what the model's config tells, and one on what else `names` has."""
    told = [name for name in names if name not in _WRITTEN]
    written = [name for name in names if name in _WRITTEN]
    notes = []
    if told:
        notes.append(
            f"not in the log: {', '.join(told)}; put the model's config before it: "
            "cat MODEL/config.json LOG | ws-guard explain"
        )
    if written:
        words = " ".join(_WRITTEN[name] for name in written)
        notes.append(
            f"not in the log: {', '.join(written)}; write it before it: "
            f"(echo '{words}'; cat LOG) | ws-guard explain"
        )
    return notes
