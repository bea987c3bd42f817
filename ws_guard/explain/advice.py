"""What to set for a workspace that was too small, by the engine's own way to size it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ws_guard.engines.releases import ENGINES, numbers
from ws_guard.engines.sites import Engine, Site
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES, InputError
from ws_guard.sizing.releases import parse_release
from ws_guard.sizing.slabs import ceil_div

from .evidence import Evidence
from .plans import DETERMINISTIC_BYTES
from .readings import Reading, precedes_table
from .wordings import Fault


class Advice(NamedTuple):
    """Bytes to give the workspace, variables, all of it as one would type it, and what to say."""

    workspace_bytes: int
    env: dict[str, str]
    typed: tuple[str, ...]
    notes: tuple[str, ...]


def advise_slab(
    need_bytes: int,
    planned_bytes: int,
    readings: Sequence[Reading],
    threshold_batch: int | None,
    evidence: Evidence,
) -> Advice:
    """For a slab of trtllm-gen: `planned_bytes` are those of the worst step that is known."""
    if evidence.recommended_bytes and evidence.recommended_bytes >= need_bytes:
        return _set(evidence.recommended_bytes, dict(evidence.env))
    engine = ENGINES.get(evidence.engine or "")
    site = readings[0].site if readings else None
    size = max(_base_bytes(engine, site, evidence) + planned_bytes, need_bytes)
    if evidence.layout is not None:
        return _set(size, {})  # a slot's worker tells no engine that it would know of
    if engine is None:
        note = "not in the log: the engine; whoever allocates the workspace must give it "
        return _set(size, {}, f"{note}{size:,} bytes")
    if site is None:
        return _set(size, {engine.env: str(size)})
    if site.size == "fixed":
        flag = engine.tokens_flag if site.batch == "tokens" else engine.seqs_flag
        typed = (f"{flag} {threshold_batch}",) if threshold_batch else ()
        note = f"{engine.name} fixes the size of {site.workspace}: no variable changes it"
        return Advice(size, {}, typed, (note,))
    if all(_sizes_itself(each.site) for each in readings):
        note = f"{_since(engine, site)}, unless {engine.env} is set: it must have been"
        return Advice(size, {}, (f"unset {engine.env}",), (note,))
    value = ceil_div(size, site.times(evidence.parallel("dcp") or 1))
    return _set(size, {engine.env: str(value)}, *_sized_since(engine, readings, evidence))


def advise_plan(
    fault: Fault, need_bytes: int, worst_bytes: int | None, evidence: Evidence
) -> Advice:
    """For a plan of FlashInfer's own kernels: `worst_bytes` is the need of the largest known."""
    size = worst_bytes or need_bytes
    if evidence.deterministic and fault.available == DETERMINISTIC_BYTES:
        return _set(size, {}, "shorter prompts, or an attention backend other than flashinfer")
    engine = ENGINES.get(evidence.engine or "")
    if engine is None:
        note = "not in the log: the engine; give the wrapper's float workspace that many bytes"
        return _set(size, {}, note)
    default = _default_bytes(engine)
    if size >= default or _is_older(engine, fault, evidence):
        return _set(size, {engine.env: str(size)})
    note = (
        f"{size:,} bytes would do for this plan, but {engine.env} below {default:,} would make "
        "other workspaces smaller than they are by default"
    )
    return _set(default, {engine.env: str(default)}, note)


def _set(size: int, env: dict[str, str], *notes: str) -> Advice:
    return Advice(size, env, tuple(f"{name}={value}" for name, value in env.items()), notes)


def _base_bytes(engine: Engine | None, site: Site | None, evidence: Evidence) -> int:
    """What the engine gives a site without a slab: a recommendation keeps it."""
    if site is None:
        return DEFAULT_WORKSPACE_BYTES if engine is None else _default_bytes(engine)
    if site.size == "fixed":
        return DEFAULT_WORKSPACE_BYTES
    return site.size_bytes * site.times(evidence.parallel("dcp") or 1)


def _default_bytes(engine: Engine) -> int:
    """The largest size that any workspace has which the engine's variable changes, if unset."""
    return max(site.size_bytes for site in engine.sites if site.size != "fixed")


def _is_older(engine: Engine, fault: Fault, evidence: Evidence) -> bool:
    """Whether engine or FlashInfer are of a release before the table's: its default was another."""
    if fault.old or precedes_table(engine, evidence):
        return True
    try:
        told = parse_release(evidence.flashinfer or "")
    except InputError:
        return False
    return told.numbers < parse_release(engine.releases[0].flashinfer).numbers


# -- sites that an engine sizes itself ------------------------------------------------------------


def _sizes_itself(site: Site | None) -> bool:
    return site is not None and site.size == "computed"


def _since(engine: Engine, site: Site) -> str:
    """Which release sizes a site by itself; empty where none does."""
    since = [
        each.since
        for each in engine.sites
        if each.workspace == site.workspace and _sizes_itself(each)
    ]
    return f"{engine.name} from {min(since, key=numbers)} on sizes it itself" if since else ""


def _sized_since(engine: Engine, readings: Sequence[Reading], evidence: Evidence) -> list[str]:
    """What to say of the site, or of one that it may be as well, where a release sizes it."""
    for site in dict.fromkeys(each.site for each in readings):
        if site is None or not (words := _since(engine, site)):
            continue
        if _sizes_itself(site) and _is_told(evidence.engine_version):
            return [f"if it is {site.workspace}: {words} once {engine.env} is unset"]
        if site == readings[0].site:
            return [words]
    return []


def _is_told(version: str | None) -> bool:
    try:
        return bool(version and numbers(version))
    except InputError:
        return False
