"""What is known beside a fault, from a log's hints or from a slot, and what follows from it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ws_guard.engines.hub import read_config
from ws_guard.engines.model import model_of
from ws_guard.sizing import LAYOUTS, InputError, Layout, layouts_of_release

from . import devices
from .hints import Hint

#: A hub id: never a path, which would be one of another machine.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
#: The most that a field can be: beyond it a number belongs to something else.
_MOST = {
    "tp": 1 << 16,
    "dcp": 1 << 16,
    "dp": 1 << 16,
    "pcp": 1 << 16,
    "heads": 1 << 12,
    "kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "sm_count": 1 << 10,
    "draft_tokens": 1 << 12,
    "tokens": (1 << 31) - 1,
    "seqs": (1 << 31) - 1,
    "workspace": 1 << 40,
}
#: Of more starts than these in one log the last count.
_MOST_STARTS = 8


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
        )

    def layouts(self) -> tuple[Layout, ...] | None:
        """The layouts that a slot or FlashInfer's release leaves; None where neither is told."""
        if self.layout in LAYOUTS:
            return (LAYOUTS[self.layout],)
        try:
            return layouts_of_release(self.flashinfer) if self.flashinfer else None
        except InputError:
            return None


class Hints:
    """Gathers hints: of one field the surest wording counts, of several values the last."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, dict[Any, None]]] = {}

    def add(self, hint: Hint) -> None:
        """Take in what was told, unless nothing can be that."""
        if hint.field in _MOST and not 0 < hint.value <= _MOST[hint.field]:
            return
        weight, values = self._found.get(hint.field, (0, {}))
        if hint.weight > weight:
            weight, values = hint.weight, {}
        if hint.weight == weight:
            # The last of the order is the last told.
            values.pop(hint.value, None)
            values[hint.value] = None
            self._found[hint.field] = weight, values

    def evidence(self, environ: Mapping[str, str] | None = None) -> Evidence:
        """All of it; a model that the log names is looked up in the hub's cache, never online."""
        engine = self._last("engine")
        version = self._last(f"{engine}_version") if engine else None
        known = Evidence(
            engine=engine,
            engine_version=version,
            flashinfer=self._last("flashinfer_version"),
            complete=bool(self._last("complete")),
            tokens=max(self._all("tokens"), default=None),
            seqs=max(self._all("seqs"), default=None),
            draft_tokens=self._last("draft_tokens"),
            heads=self._all("heads"),
            kv_heads=self._all("kv_heads"),
            head_dim=self._all("head_dim"),
            gpu=self._last("gpu"),
            sm_count=self._last("sm_count"),
            env_bytes=self._last("workspace"),
            utilization=self._last("utilization"),
            deterministic=bool(self._last("deterministic")),
            dp_attention=bool(self._last("dp_attention")),
            backends=self._all("backend"),
            model=self._last("model"),
            tp=self._last("tp"),
            dcp=self._last("dcp"),
            dp=self._last("dp"),
            pcp=self._last("pcp"),
        )
        doubts = tuple(
            field
            for field in ("tp", "dcp", "tokens", "seqs", "heads", "flashinfer_version")
            if len(self._all(field)) > 1
        )
        known = known._replace(
            doubts=doubts,
            tps=self._all("tp")[-_MOST_STARTS:] if "tp" in doubts else (),
            dcps=self._all("dcp")[-_MOST_STARTS:] if "dcp" in doubts else (),
        )
        if known.sm_count is None and known.gpu is not None:
            known = known._replace(sm_count=devices.SMS_BY_NAME.get(known.gpu))
        return _with_model(known, os.environ if environ is None else environ)

    def _all(self, field: str) -> tuple[Any, ...]:
        return tuple(self._found.get(field, (0, {}))[1])

    def _last(self, field: str) -> Any:  # noqa: ANN401 - a value of the field's own type
        values = self._all(field)
        return values[-1] if values else None


def _with_model(known: Evidence, environ: Mapping[str, str]) -> Evidence:
    if known.heads or not known.model or not _HUB_ID.fullmatch(known.model):
        return known
    try:
        model = model_of(known.model, read_config(known.model, environ))
    except (InputError, ValueError):
        return known
    if not 0 < model.heads <= _MOST["heads"]:
        return known
    note = f"{model.heads} heads by the config of {known.model} in the hub cache of this machine"
    return known._replace(
        heads=(model.heads,),
        kv_heads=(model.kv_heads,) if model.kv_heads else (),
        head_dim=(model.head_dim,) if model.head_dim else (),
        notes=(note,),
    )
