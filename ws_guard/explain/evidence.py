"""What is known beside a fault, from a log's hints or from a slot, and what follows from it."""

from __future__ import annotations

from typing import NamedTuple

from ws_guard.sizing import LAYOUTS, InputError, Layout, layouts_of_release


class Evidence(NamedTuple):
    """Facts about the process that met a fault; None or empty where nothing tells.

    `heads`, `kv_heads` and `head_dim` are the model's; several values where the log tells several.
    `complete`: all flags were seen, so that one which was not has its default. `backends` are names
    of attention backends, `sites` names of engine sites whose code stands in the traceback.
    `layout`, `kernel_heads`, `batch`, `q_len`, `entry` and `workspace_bytes` come from a slot.
    """

    engine: str | None = None
    engine_version: str | None = None
    flashinfer: str | None = None
    complete: bool = False
    tp: int | None = None
    dcp: int | None = None
    dp: int | None = None
    pcp: int | None = None
    tokens: int | None = None
    seqs: int | None = None
    draft_tokens: int | None = None
    #: Tokens of each step that failed; which failure they are of is not certain.
    scheduled: tuple[int, ...] = ()
    #: Tokens of the step that met this fault.
    step: int | None = None
    heads: tuple[int, ...] = ()
    kv_heads: tuple[int, ...] = ()
    head_dim: tuple[int, ...] = ()
    gpu: str | None = None
    sm_count: int | None = None
    env_bytes: int | None = None
    utilization: float | None = None
    deterministic: bool = False
    dp_attention: bool = False
    backends: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    model: str | None = None
    #: The log's own name, where it is a file.
    log: str | None = None
    layout: str | None = None
    entry: str | None = None
    kernel_heads: int | None = None
    batch: int | None = None
    q_len: int | None = None
    workspace_bytes: int | None = None
    recommended_bytes: int | None = None
    env: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    #: Fields of which the log tells several values: nothing that rests on them is exact.
    doubts: tuple[str, ...] = ()
    #: Every value of a parallel size, where the log tells several: a call may be of any.
    tps: tuple[int, ...] = ()
    dcps: tuple[int, ...] = ()

    def parallel(self, field: str) -> int | None:
        """A parallel size: as told, else 1 where all flags were seen."""
        told: int | None = getattr(self, field)
        return 1 if told is None and self.complete else told

    @property
    def attention_tp(self) -> int | None:
        """Ranks that share the query heads; by the last start, where the log has several."""
        tp = self.parallel("tp")
        return None if tp is None else self._sharing(tp)

    @property
    def splits(self) -> set[tuple[int, int]]:
        """(ranks that share the query heads, DCP's group) of every start that the log can tell of.

        Empty where it tells no tensor parallel size.
        """
        tps = [tp for tp in self.tps or (self.parallel("tp"),) if tp is not None]
        found = {(tp, group) for tp in tps for group in self._groups(tp)}
        if self.tps or self.dcps:
            # Values of several starts: not every pair is one.
            whole = {(tp, group) for tp, group in found if tp * (self.pcp or 1) % group == 0}
            found = whole or found
        return {(self._sharing(tp), group) for tp, group in found}

    def _groups(self, tp: int) -> set[int]:
        dcp = self.parallel("dcp")
        if dcp is None:
            # Without a word about DCP its group is any part of the ranks.
            sharing = self._sharing(tp)
            return {part for part in range(1, sharing + 1) if sharing % part == 0}
        # Of several starts, one without the flag is one without DCP.
        return {dcp, *self.dcps, 1} if self.tps or self.dcps else {dcp}

    def _sharing(self, tp: int) -> int:
        return max(1, tp // self.dp) if self.dp_attention and self.dp else tp

    def unlimited(self) -> Evidence:
        """The same without what bounds a call: as of a log that tells no flags and no model."""
        return Evidence(
            engine=self.engine,
            engine_version=self.engine_version,
            flashinfer=self.flashinfer,
            sites=self.sites,
            env_bytes=self.env_bytes,
            notes=self.notes,
            log=self.log,
        )

    def layouts(self) -> tuple[Layout, ...] | None:
        """The layouts that a slot or FlashInfer's release leaves; None where neither is told."""
        if self.layout in LAYOUTS:
            return (LAYOUTS[self.layout],)
        try:
            return layouts_of_release(self.flashinfer) if self.flashinfer else None
        except InputError:
            return None
