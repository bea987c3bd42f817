"""Gathers the hints of a log, and makes the evidence of them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ws_guard.engines.hub import read_cached_config, read_config
from ws_guard.engines.model import Model, model_of
from ws_guard.sizing import InputError

from .devices import SMS_BY_NAME
from .evidence import Evidence
from .hints import Hint

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
    "scheduled": (1 << 31) - 1,
    "seqs": (1 << 31) - 1,
    "workspace": 1 << 40,
}
#: Of more starts than these in one log the last count.
_MOST_STARTS = 8
_MOST_MISSPELT = 8
#: Fields of which a log may tell several values: the last counts, the largest, or all of them.
_LAST = ("tp", "dcp", "dp", "pcp", "draft_tokens", "gpu", "sm_count", "utilization", "model")
_LARGEST = ("tokens", "seqs")
_ALL = ("scheduled", "heads", "kv_heads", "head_dim")
#: Switches that are on once they are told.
_SWITCHES = ("complete", "deterministic", "dp_attention")
#: Of these several values make doubtful what rests on them.
_DOUBTFUL = ("tp", "dcp", "tokens", "seqs", "heads", "flashinfer_version")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


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
        """All of it; a model that the log names is looked up on this machine, never online."""
        engine, gpu = self._last("engine"), self._last("gpu")
        doubts = tuple(field for field in _DOUBTFUL if len(self._all(field)) > 1)
        told = {
            **{field: self._last(field) for field in _LAST},
            **{field: max(self._all(field), default=None) for field in _LARGEST},
            **{field: self._all(field) for field in _ALL},
            **{field: bool(self._last(field)) for field in _SWITCHES},
            "engine": engine,
            "engine_version": self._last(f"{engine}_version") if engine else None,
            "flashinfer": self._last("flashinfer_version"),
            "sm_count": self._last("sm_count") or SMS_BY_NAME.get(gpu),
            "env_bytes": self._last("workspace"),
            "backends": self._all("backend"),
            "notes": self._misspelt(),
            "doubts": doubts,
            "tps": self._all("tp")[-_MOST_STARTS:] if "tp" in doubts else (),
            "dcps": self._all("dcp")[-_MOST_STARTS:] if "dcp" in doubts else (),
        }
        return _with_model(Evidence(**told), os.environ if environ is None else environ)

    def of_engine(self, known: Evidence, engines: Collection[str]) -> Evidence:
        """What is known of a fault whose tracebacks are of these engines.

        In a log of two engines nobody knows whose flags are whose: those of the other are left
        aside, and nothing is exact.
        """
        engine = next(iter(engines)) if len(engines) == 1 else known.engine
        version = self._last(f"{engine}_version") if engine else None
        own = known._replace(engine=engine, engine_version=version)
        if engine == known.engine or known.engine is None:
            return own
        note = f"the log is of {known.engine} and {engine}: flags and model were left aside"
        own = own._replace(flashinfer=None, notes=(*self._misspelt(), note))
        return own.unlimited()._replace(doubts=("engine",))

    def _misspelt(self) -> tuple[str, ...]:
        """On variables that are none, unless the right one is set as well."""
        if self._last("workspace"):
            return ()
        told = self._all("misspelt")
        more = len(told) - _MOST_MISSPELT
        return (*told[:_MOST_MISSPELT], *([f"and {more} such names more"] if more > 0 else []))

    def _all(self, field: str) -> tuple[Any, ...]:
        return tuple(self._found.get(field, (0, {}))[1])

    def _last(self, field: str) -> Any:  # noqa: ANN401 - a value of the field's own type
        values = self._all(field)
        return values[-1] if values else None


def _with_model(known: Evidence, environ: Mapping[str, str]) -> Evidence:
    """With the numbers of the model that the log names, where it does not tell them itself."""
    found = _look_up(known.model, environ) if known.model and not known.heads else None
    if found is None:
        return known
    model, where = found
    return known._replace(
        heads=(model.heads,),
        kv_heads=(model.kv_heads,) if model.kv_heads else (),
        head_dim=(model.head_dim,) if model.head_dim else (),
        notes=(
            *known.notes,
            f"{model.heads} heads by the config of {known.model} {where}",
        ),
    )


def _look_up(name: str, environ: Mapping[str, str]) -> tuple[Model, str] | None:
    """A model of this machine, and where its config lies: in the hub cache, or at the log's path.

    Of a path only a directory counts: a log may name any file.
    """
    try:
        if _HUB_ID.fullmatch(name):
            where = "in the hub cache of this machine"
            config = read_cached_config(name, environ)
        elif _holds_config(name):
            where = "as it lies on this machine: if the log is of another one, they may differ"
            config = read_config(name, environ)
        else:
            return None
        model = model_of(name, config)
    except (InputError, ValueError):
        return None
    return (model, where) if 0 < model.heads <= _MOST["heads"] else None


def _holds_config(path: str) -> bool:
    try:
        return Path(path).is_absolute() and (Path(path) / "config.json").is_file()
    except (OSError, ValueError):
        return False
