"""What a worker tells of itself, made safe: its document is JSON that anybody may have written.

Whatever has the wrong type is as good as not told. Texts become printable and short, so that no
label breaks an exposition and no line a terminal; paths are cut out of the free texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ws_guard.board import MAX_WORKSPACES
from ws_guard.board.format import MAX_OPS
from ws_guard.sizing import LAYOUTS, SLABS, Layout

from .model import DestroyedZone, Numbers, Suspect

INFO_KEYS = (
    "model_name",
    "device",
    "engine_name",
    "engine_version",
    "flashinfer_version",
    "tp",
    "dcp",
    "sizing",
    "on_overflow",
)
CONTRACTS = ("verified", "unverified", "mismatch", "not_installed")
#: The label of every workspace or op beyond those that have a name of their own.
OTHER = "other"

_MAX_LINES = 16
_LABEL_CHARS, _LINE_CHARS, _MOST_PATH_CHARS = 128, 400, 4096
_INT64_MAX = (1 << 63) - 1
_MAX_WORKERS = 1 << 16
_MAX_SECONDS = 1e12
#: How a name that is a path or an address begins, which the id of a model does not.
_PLACE = re.compile(r"(?:\.{0,2}|~[^/]*|[A-Za-z][\w+.-]*:/)/")
#: A path in a text: between quotes to the closing one, else as far as it has no space.
_PATH = re.compile(
    r"""(?<=')(?:\.{0,2}|~)/[^']*(?=')|(?<=")(?:\.{0,2}|~)/[^"]*(?=")"""
    r"""|(?<![\w.])(?:\.{0,2}|~)/[^\s:;,'")]+"""
)


class Document(NamedTuple):
    """A worker's document. `plans` is None where no plan is known, by workspace name otherwise."""

    engine: str
    rank: str
    expected_workers: int | None
    ops: list[str]
    workspaces: list[str]
    layout: Layout | None
    contract: str
    contract_reason: str
    info: dict[str, str]
    plans: dict[str, Numbers] | None
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    destroyed_zones: tuple[DestroyedZone, ...]

    def op_name(self, index: int) -> str:
        """The native op behind a shape's `op`."""
        return self.ops[index] if index < len(self.ops) else OTHER

    def workspace_name(self, index: int) -> str:
        """The name behind a shape's `workspace`."""
        return self.workspaces[index] if index < len(self.workspaces) else OTHER

    def plan_of(self, workspace: str) -> Numbers | None:
        """The plan of a workspace by its name; None where none is known."""
        return self.plans.get(workspace) if self.plans else None


def parse_document(told: Mapping[str, Any]) -> Document:
    """The document as far as it makes sense."""
    layout = told.get("layout")
    contract = _text(told.get("contract"))
    info = _dict(told.get("info"))
    workspaces = _names(told.get("workspaces"), MAX_WORKSPACES, "ws")
    return Document(
        engine=_text(told.get("engine")) or "0",
        rank=_text(told.get("rank")) or "0",
        expected_workers=_whole(told.get("expected_workers"), least=1, most=_MAX_WORKERS),
        ops=_names(told.get("ops"), MAX_OPS, "op"),
        workspaces=workspaces,
        layout=LAYOUTS.get(layout) if isinstance(layout, str) else None,
        contract=contract if contract in CONTRACTS else "",
        contract_reason=_line(told.get("contract_reason")),
        info={key: _text(info.get(key)) for key in INFO_KEYS},
        plans=_plans(told.get("planned"), workspaces),
        problems=_lines(told.get("problems")),
        warnings=_lines(told.get("warnings")),
        destroyed_zones=tuple(_zone(zone) for zone in _objects(told.get("destroyed_zones"))),
    )


def _printable(value: object, most: int) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    return "".join(c if c.isprintable() else "?" for c in str(value)[:most])


def _text(value: object) -> str:
    """A name; of a path, as engines call a model after its directory, the last part."""
    text = _printable(value, _MOST_PATH_CHARS)
    if _PLACE.match(text):
        text = text.rstrip("/").rpartition("/")[2]
    return text[:_LABEL_CHARS]


def _line(value: object) -> str:
    return _PATH.sub("(path)", _printable(value, _LINE_CHARS))


def _whole(value: object, *, least: int = 0, most: int = _INT64_MAX) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        return None
    return value


def _names(value: object, most: int, prefix: str) -> list[str]:
    names = _list(value)[:most]
    return [_text(name) or f"{prefix}{index}" for index, name in enumerate(names)]


def _lines(value: object) -> tuple[str, ...]:
    return tuple(line for line in map(_line, _list(value)[:_MAX_LINES]) if line)


def _plans(value: object, workspaces: list[str]) -> dict[str, Numbers] | None:
    """The plan of each site, by workspace name; the worst of those that share `other`."""
    if not isinstance(value, list):
        return None
    plans: dict[str, Numbers] = {}
    for index, site in enumerate(value):
        if not isinstance(site, dict):
            continue
        name = _text(site.get("workspace")) or f"ws{index}"
        if name not in plans and len({*workspaces, *plans} - {OTHER, name}) >= MAX_WORKSPACES:
            name = OTHER
        numbers = _site_numbers(site)
        if name not in plans or _worse(numbers, plans[name]):
            plans[name] = numbers
    return plans


def _worse(one: Numbers, other: Numbers) -> bool:
    if one.margin_bytes is None or other.margin_bytes is None:
        return other.margin_bytes is None
    return one.margin_bytes < other.margin_bytes


def _site_numbers(site: Mapping[str, Any]) -> Numbers:
    """A site's plan as numbers."""
    told = map(_text, _list(site.get("reasons"))[:_MAX_LINES])
    unspecified = ("unspecified",) if site.get("fits") is False else ()
    return Numbers(
        need_bytes=_whole(site.get("need_bytes")),
        workspace_bytes=_whole(site.get("workspace_bytes"), least=1),
        batch=_whole(site.get("planned_batch")),
        overflow_threshold_batch=_whole(site.get("overflow_threshold_batch")),
        overrun_batches=_pair(site.get("overrun_batches")),
        slabs=_slabs(site.get("slabs")),
        heads=_whole(site.get("kernel_heads")),
        q_len=_whole(site.get("max_q_len")),
        lse=_flag(site.get("lse")),
        recommended_workspace_bytes=_whole(site.get("recommended_workspace_bytes")),
        env=_env(site.get("env")),
        reasons=tuple(filter(None, told)) or unspecified,
    ).with_margins()


def _zone(told: Mapping[str, Any]) -> DestroyedZone:
    return DestroyedZone(
        workspace=_text(told.get("workspace")) or OTHER,
        destroyed_bytes=_whole(told.get("destroyed_bytes")),
        since_timestamp_seconds=_moment(told.get("since")),
        until_timestamp_seconds=_moment(told.get("until")),
        calls=tuple(_suspect(call) for call in _objects(told.get("calls"))),
    )


def _suspect(told: Mapping[str, Any]) -> Suspect:
    return Suspect(
        op=_text(told.get("op")) or OTHER,
        batch=_whole(told.get("batch")),
        heads=_whole(told.get("heads")),
        q_len=_whole(told.get("q_len")),
        lse=_flag(told.get("lse")),
    )


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _moment(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < _MAX_SECONDS else None


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in _list(value)[:_MAX_LINES] if isinstance(each, dict)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _pair(value: object) -> tuple[int, int] | None:
    match [_whole(item) for item in _list(value)]:
        case [int(low), int(high)]:
            return low, high
    return None


def _slabs(value: object) -> dict[str, int]:
    told = _dict(value)
    return {slab: size for slab in SLABS if (size := _whole(told.get(slab))) is not None}


def _env(value: object) -> dict[str, str]:
    told = list(_dict(value).items())[:_MAX_LINES]
    return {_text(name): _text(setting) for name, setting in told}
