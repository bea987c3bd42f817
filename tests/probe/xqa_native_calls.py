"""An XQA op under a probe, and arguments to call it with, as the installed source has them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ws_guard.contract import installed_xqa
from ws_guard.probe.xqa_op import instrument_xqa, xqa_positions_of
from ws_guard.sizing import XQA_OPS, XQA_SEMAPHORE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from meetings import Meetings

    from ws_guard.probe.ledger import Ledger

MIB = 1 << 20
OP, MLA = XQA_OPS["xqa"], XQA_OPS["xqa_mla"]
#: Read once: it is a large source.
contract = functools.cache(installed_xqa)


def xqa_workspace(size: int = 64 * MIB) -> torch.Tensor:
    """A workspace as FlashInfer asks for it: zeroed."""
    return torch.zeros(size, dtype=torch.uint8)


def xqa_arguments(
    op: str = OP,
    workspace: torch.Tensor | None = None,
    *,
    batch: int = 16,
    tokens: int = 2048,
    **changes: Any,
) -> list[Any]:
    """A decode step of 64 query and 8 KV heads of 128; MLA has 128 heads of 576 and 512."""
    if workspace is None:
        workspace = xqa_workspace()
    heads, qk, vo = (64, 128, 128) if op == OP else (128, 576, 512)
    named = {
        "run_sm90_fp8_mha": False,
        "multiProcessorCount": 132,
        "nbKHeads": 8,
        "output": torch.empty(batch, 1, heads, vo, device="meta"),
        "q": torch.empty(batch, 1, heads, qk, device="meta"),
        "maxSeqLen": tokens,
        "batchSize": batch,
        "qSeqLen": 1,
        "semaphores": workspace[:XQA_SEMAPHORE_BYTES],
        "scratch": workspace[XQA_SEMAPHORE_BYTES:],
        **changes,
    }
    return [named.get(name) for name in contract().signatures[op]]


class WatchedXqa:
    """An XQA op under a probe; `ledger_calls` are those that did not stay on the hot path."""

    def __init__(self, meetings: Meetings, op: str = OP) -> None:
        self.meetings = meetings
        self.ledger: Ledger = meetings._ledgers[op]
        self.where = xqa_positions_of(contract(), op)
        self.ledger_calls = 0
        meet = self.ledger.meet

        def counted(met: Any) -> Any:
            self.ledger_calls += 1
            return meet(met)

        self.ledger.meet = counted

    def over(self, native: Callable[..., Any]) -> Callable[..., Any]:
        return instrument_xqa(native, self.where, self.ledger)
