"""What to set for a workspace that was too small, by the engine's own way to size it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ws_guard.engines.releases import ENGINES, is_before, numbers
from ws_guard.engines.sites import Engine, Site
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES, InputError
from ws_guard.sizing.releases import parse_release
from ws_guard.sizing.slabs import ceil_div

from .evidence import Evidence
from .plan_notes import DETERMINISTIC_BYTES
from .readings import Reading, precedes_table
from .slabs import Solved
from .wordings import Fault

#: Of those that may be, besides the most.
_MOST_HEADS_TOLD = 3


class Advice(NamedTuple):
    """Bytes to give the workspace, variables, all of it as one would type it, and what to say.

    No bytes where nobody can give them: its engine fixes the size.
    """

    workspace_bytes: int | None
    env: dict[str, str]
    typed: tuple[str, ...]
    notes: tuple[str, ...]


def advise_slab(solved: Solved, need_bytes: int, evidence: Evidence) -> Advice:
    """For a slab of trtllm-gen, `need_bytes` that of the call."""
    if evidence.recommended_bytes and evidence.recommended_bytes >= need_bytes:
        return _set(evidence.recommended_bytes, dict(evidence.env))
    engine = ENGINES.get(evidence.engine or "")
    site = solved.readings[0].site if solved.readings else None
    planned = max(solved.planned.values(), default=0)
    size = max(_base_bytes(engine, site, evidence) + planned, need_bytes)
    if evidence.layout is not None:
        return _set(size, {})  # a slot's worker tells no engine that it would know of
    if site is not None and engine is not None and site.size == "fixed":
        return _lowered(engine, site, solved.lowest_thresholds, size)
    notes = _by_heads({heads: size - planned + slab for heads, slab in solved.planned.items()})
    if engine is None:
        plain = solved._replace(readings=())
        either = _of_either_engine(
            lambda each: advise_slab(plain, need_bytes, each), size, evidence, solved.fixed_sites
        )
        return _set(size, {}, *notes, *either)
    if site is None:
        return _set_variable(engine, size, size, evidence, *notes)
    if all(_sizes_itself(each.site) for each in solved.readings):
        note = f"{_since(engine, site)}, unless {engine.env} is set: it must have been"
        return Advice(size, {}, (f"unset {engine.env}",), (note,))
    value = ceil_div(size, site.times(evidence.parallel("dcp") or 1))
    since = _sized_since(engine, solved.readings, evidence)
    return _set_variable(engine, size, value, evidence, *notes, *since)


def _lowered(engine: Engine, site: Site, thresholds: dict[int, int], size: int) -> Advice:
    """For a site whose size the engine fixes: fewer rows, whatever the heads."""
    flag, note = _rows_flag(engine, site), _fixed(engine, site)
    if not thresholds:
        return Advice(None, {}, (), (f"{note}, but a lower {flag} helps",))
    notes = _by_heads(thresholds, f"{flag} {{:}}")
    return Advice(size, {}, (f"{flag} {min(thresholds.values())}",), (note, *notes))


def _rows_flag(engine: Engine, site: Site) -> str:
    return engine.tokens_flag if site.batch == "tokens" else engine.seqs_flag


def _fixed(engine: Engine, site: Site) -> str:
    return f"{engine.name} fixes the size of {site.workspace}: no variable changes it"


def _by_heads(told: dict[int, int], words: str = "{:,} bytes") -> list[str]:
    """What to set by heads, where these are not known and it is not the same for all."""
    if len(set(told.values())) < 2:
        return []
    others = ", ".join(
        f"{words.format(told[heads])} for {heads}"
        for heads in [each for each in told if each != max(told)][:_MOST_HEADS_TOLD]
    )
    sure = f"how many heads the kernel saw is not certain: what to set holds for up to {max(told)}"
    return [f"{sure}; enough would be {others}"]


def _of_either_engine(
    advise: Callable[[Evidence], Advice],
    size: int,
    evidence: Evidence,
    fixed: Mapping[str, Site] = MappingProxyType({}),
) -> list[str]:
    """What to say where the log does not tell the engine; of `fixed` sites no variable."""
    note = "not in the log: the engine; whoever allocates the workspace must give it "
    settings = [
        f"if this is {name}: a lower {_rows_flag(engine, fixed[name])}; "
        f"{_fixed(engine, fixed[name])}"
        if name in fixed
        else f"if this is {name}: {', '.join(advise(evidence._replace(engine=name)).typed)}"
        for name, engine in ENGINES.items()
    ]
    return [f"{note}{size:,} bytes", *settings]


def advise_plan(
    fault: Fault, need_bytes: int, worst_bytes: int | None, evidence: Evidence
) -> Advice:
    """For a plan of FlashInfer's own kernels: `worst_bytes` is the need of the largest known."""
    size = worst_bytes or need_bytes
    if evidence.deterministic and fault.available == DETERMINISTIC_BYTES:
        return _set(size, {}, "shorter prompts, or an attention backend other than flashinfer")
    engine = ENGINES.get(evidence.engine or "")
    if engine is None:
        either = _of_either_engine(
            lambda each: advise_plan(fault, need_bytes, worst_bytes, each), size, evidence
        )
        return _set(size, {}, *either)
    default = _default_bytes(engine)
    if size >= default or _is_older(engine, fault, evidence):
        return _set_variable(engine, size, size, evidence)
    note = (
        f"{size:,} bytes would do for this plan, but {engine.env} below {default:,} would make "
        "other workspaces smaller than they are by default"
    )
    return _set(default, {engine.env: str(default)}, note)


def _set_variable(engine: Engine, size: int, value: int, evidence: Evidence, *notes: str) -> Advice:
    """The engine's variable; of a release that has none the way to one that has."""
    if not _lacks_variable(engine, evidence):
        return _set(size, {engine.env: str(value)}, *notes)
    default = _default_bytes(engine)
    enough = f"there {default:,} bytes are the default"
    remedy = f"{enough}, enough for this" if value <= default else f"set {engine.env}={value} there"
    return _set(
        size,
        {},
        *notes,
        f"{engine.name} {evidence.engine_version} has a constant and no {engine.env}, which came "
        f"with {engine.env_since}: take that or a later one, {remedy}",
        "without another release only another attention backend helps, or another constant: "
        f"{engine.constant}",
    )


def _lacks_variable(engine: Engine, evidence: Evidence) -> bool:
    return engine.env_since is not None and is_before(evidence.engine_version, engine.env_since)


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
