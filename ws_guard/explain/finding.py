"""What is told of one fault: the keys of the public contract, and a few beside them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Confidence = Literal["exact", "consistent", "unsolved"]

#: How far advice reaches that knows only the call.
THIS_CALL_ALONE = (
    "what to set holds for this call; a larger step may need more: "
    "ws-guard plan sizes the largest that the launch allows"
)


class Solution(NamedTuple):
    """One reading of a size: the call, or the plan, that asks exactly for it.

    For trtllm-gen slabs every length from `lowest_q_len` to `highest_q_len` asks for the same
    bytes; `max_q_len` stands for them. For FlashInfer's own plans `rows` are partial results per
    head, made of `tiles` tiles of `tile` rows; `rule` says what leads to their number.
    """

    num_qo_heads: int
    batch_size: int | None = None
    max_q_len: int | None = None
    lowest_q_len: int | None = None
    highest_q_len: int | None = None
    head_dim: int | None = None
    rows: int | None = None
    tile: int | None = None
    tiles: int | None = None
    formula: str | None = None
    rule: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The three keys of the contract, and what else is known."""
        told = self._asdict()
        kept = ("num_qo_heads", "batch_size", "max_q_len")
        return {key: value for key, value in told.items() if key in kept or value is not None}


class Finding(NamedTuple):
    """One distinct fault. Sizes in bytes, batches in rows; None: not known.

    `need_bytes` is what the workspace must hold for this very call, the slabs that come after the
    refused one included; `recommended_workspace_bytes` is what to set. `set` are flags and
    variables as one would type them.
    """

    kind: str
    ranks: tuple[str, ...]
    slab: str
    size: int | None
    available: int | None
    layouts: tuple[str, ...]
    workspace_bytes: tuple[int, ...]
    solutions: tuple[Solution, ...]
    overflow_threshold_batch: int | None
    need_bytes: int | None
    recommended_workspace_bytes: int | None
    env: dict[str, str]
    set: tuple[str, ...]
    confidence: Confidence
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "solutions": [each.as_dict() for each in self.solutions]}
