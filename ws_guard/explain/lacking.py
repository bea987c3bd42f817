"""What a log lacks, and how to hand it over: whatever stands before a log is read with it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection

from .evidence import Evidence

#: What is told of a launch or of a release, and how it may be written.
_WRITTEN = {
    "tp": "tp=8",
    "dcp": "dcp=8",
    "the tokens of a step": "max_num_batched_tokens=16384",
    "FlashInfer's version or the line of allocator.h": "flashinfer-python==0.6.14",
}


def lacking(names: Collection[str], evidence: Evidence) -> list[str]:
    """One note on what `names` has, and on one command that hands it over."""
    if not names:
        return []
    log = shlex.quote(evidence.log or "LOG")
    files, how = log, []
    if any(name not in _WRITTEN for name in names):
        config, whose = _config(evidence.model)
        files = f"{config} {log}"
        how.append(f"put {whose} config before it")
    words = " ".join(_WRITTEN[name] for name in names if name in _WRITTEN)
    if words:
        how.append("write your numbers before it")
    command = f"(echo '{words}'; cat {files})" if words else f"cat {files}"
    return [f"not in the log: {', '.join(names)}; {', '.join(how)}: {command} | ws-guard explain"]


def _config(model: str | None) -> tuple[str, str]:
    """The file of a model's config as one would type it, and whose it is."""
    if model is None:
        return "MODEL/config.json", "the model's"
    if os.path.isabs(model):
        return shlex.quote(f"{model.rstrip('/')}/config.json"), "the model's"
    return "MODEL/config.json", f"{model}'s"
