"""Which call sites a refused slab can come from: layouts, entries, sites of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ws_guard.engines.releases import ENGINES, is_before, numbers, sites_of
from ws_guard.engines.sites import Engine, EngineRelease, Site
from ws_guard.sizing import (
    ENTRIES,
    LAYOUTS,
    Entry,
    InputError,
    Layout,
    is_newer_than_seen,
    layouts_of_release,
)
from ws_guard.sizing.layouts import ALIGNMENT, NATIVE_SLABS
from ws_guard.sizing.releases import NEWEST_SEEN

from .evidence import Evidence
from .wordings import Fault

#: Layouts by the line of `allocator.h` that throws (ten releases, 0.6.8 to 0.7.4).
LAYOUTS_OF_LINE: dict[int, tuple[str, ...]] = {49: ("A", "B"), 71: ("C",)}


class Reading(NamedTuple):
    """A carve that could have refused: `carved` bytes lie before the slab.

    `site` is the engine's workspace behind it, None where any caller may be.
    """

    layout: Layout
    entry: Entry
    carved: int
    rule: str
    site: Site | None = None
    engine: Engine | None = None
    release: EngineRelease | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells readings apart: a site may be sized in another way by another release."""
        workspace, size = (self.site.workspace, self.site.size) if self.site else ("", "")
        return self.layout.name, self.entry, workspace, size

    def workspace_bytes(self, available: int) -> int:
        """The workspace that leaves so much, from an aligned address on."""
        return self.carved + available


def known_layouts(fault: Fault, evidence: Evidence) -> tuple[tuple[Layout, ...], bool, list[str]]:
    """(layouts that can be, whether the log tells them, notes)."""
    by_version = evidence.layouts()
    if evidence.layout in LAYOUTS and by_version:
        return by_version, True, []
    told, sure, notes = _layouts_of_release(by_version, evidence)
    names = LAYOUTS_OF_LINE.get(fault.line or 0)
    if names is None:
        return told or tuple(LAYOUTS.values()), sure, notes
    by_line = tuple(LAYOUTS[name] for name in names)
    both = tuple(layout for layout in by_line if told is None or layout in told)
    if not both:
        notes.append(
            f"allocator.h:{fault.line} and the release in the log do not agree: the line counts"
        )
    return both or by_line, True, notes


def _layouts_of_release(
    by_version: tuple[Layout, ...] | None, evidence: Evidence
) -> tuple[tuple[Layout, ...] | None, bool, list[str]]:
    """The same by FlashInfer's release, or by that which the engine's release brings."""
    if by_version is None:
        by_engine = _layouts_of_engine(evidence)
        if by_engine is None:
            return None, False, []
        names = " or ".join(layout.name for layout in by_engine)
        note = (
            f"FlashInfer as {evidence.engine} {evidence.engine_version} brings it: layout {names}"
        )
        return by_engine, True, [note]
    if not is_newer_than_seen(evidence.flashinfer or ""):
        return by_version, True, []
    note = (
        f"FlashInfer {evidence.flashinfer} is newer than {NEWEST_SEEN}, the newest looked at: "
        "it is taken to carve as that"
    )
    return by_version, False, [note]


def _layouts_of_engine(evidence: Evidence) -> tuple[Layout, ...] | None:
    engine = ENGINES.get(evidence.engine or "")
    release = _release(engine, evidence) if engine else None
    return layouts_of_release(release.flashinfer) if release else None


def _release(engine: Engine, evidence: Evidence) -> EngineRelease | None:
    """The release that a log tells; None where it is none of those looked at."""
    try:
        order = numbers(evidence.engine_version or "")
    except InputError:
        return None
    return next((each for each in engine.releases if numbers(each.version) == order), None)


def generic_readings(slab: str, layouts: tuple[Layout, ...]) -> Iterator[Reading]:
    """Every entry of every layout that carves the slab."""
    for layout in layouts:
        for entry in ENTRIES:
            if reading := _reading(slab, layout, entry):
                yield reading


def _reading(slab: str, layout: Layout, entry: Entry) -> Reading | None:
    carved = 0
    for step in layout.steps[entry]:
        if NATIVE_SLABS[step.slab] == slab:
            return Reading(layout, entry, carved, step.size)
        # Only the counter stands before another slab, and it is a multiple of the alignment.
        carved += layout.counter_bytes if step.size == "counter" else 0
    assert carved % ALIGNMENT == 0  # noqa: S101 - the layouts are ours
    return None


def engine_readings(
    slab: str, layouts: tuple[Layout, ...], available: int | None, evidence: Evidence
) -> list[Reading]:
    """The sites of the engine's table that can have refused; empty where none can."""
    found: dict[tuple[object, ...], Reading] = {}
    for engine, release in _releases(evidence):
        for site in sites_of(engine, release):
            for layout in _of_release(layouts, release, evidence):
                reading = _reading(slab, layout, site.entry)
                if reading and _can_refuse(reading, site, available, evidence):
                    full = reading._replace(site=site, engine=engine, release=release)
                    found.setdefault((layout.name, site._replace(since="", before=None)), full)
    named = [each for each in found.values() if each.site and each.site.workspace in evidence.sites]
    return named or list(found.values())


def fixed_sites(
    slab: str, layouts: tuple[Layout, ...], available: int | None, evidence: Evidence
) -> dict[str, Site]:
    """By engine the site that it is if it is this engine, where its size is one that is fixed.

    None of an engine that gives a site which follows its variable the same size.
    """
    found = {}
    for name in ENGINES if available is not None else ():
        as_engine = evidence._replace(engine=name, engine_version=None)
        readings = engine_readings(slab, layouts, available, as_engine)
        own = [each.site for each in readings if is_own_size(each, available, evidence)]
        if own and own[0] is not None and all(site and site.size == "fixed" for site in own):
            found[name] = own[0]
    return found


def is_own_size(reading: Reading, available: int | None, evidence: Evidence) -> bool:
    """Whether the workspace had the size that the engine, or the log's variable, gives the site."""
    site = reading.site
    if site is None or available is None:
        return True
    times = site.times(evidence.parallel("dcp") or 1)
    by_variable = evidence.env_bytes if site.size != "fixed" else None
    sizes = {site.size_bytes * times, site.lse_size_bytes, by_variable and by_variable * times}
    return reading.workspace_bytes(available) in sizes


def _releases(evidence: Evidence) -> Iterator[tuple[Engine, EngineRelease]]:
    """The releases that it can have been: the one that the log tells, else all of its engine.

    Without the engine's name, flags that only engines have stand for both of them.
    """
    if evidence.engine is not None:
        engines = [ENGINES[evidence.engine]] if evidence.engine in ENGINES else []
    else:
        engines = [] if evidence.dcp is None else list(ENGINES.values())
    for engine in engines:
        if not precedes_table(engine, evidence):
            told = _release(engine, evidence)
            yield from ((engine, each) for each in ([told] if told else engine.releases))


def precedes_table(engine: Engine, evidence: Evidence) -> bool:
    """Whether the log is of a release before those of the engine's table."""
    return is_before(evidence.engine_version, engine.releases[0].version)


def _of_release(
    layouts: tuple[Layout, ...], release: EngineRelease, evidence: Evidence
) -> list[Layout]:
    """What remains of the layouts under the FlashInfer that a release ships.

    A log that tells FlashInfer's own version, or a slot, knows better.
    """
    if evidence.layouts() is not None:
        return list(layouts)
    shipped = layouts_of_release(release.flashinfer)
    return [layout for layout in layouts if layout in shipped]


def _can_refuse(reading: Reading, site: Site, available: int | None, evidence: Evidence) -> bool:
    if reading.rule == "padded_stats":
        if site.lse == "never" or (site.lse == "dcp" and evidence.parallel("dcp") == 1):
            return False
        if reading.layout.name == "A" and site.lse == "dcp":
            return False
    if site.selector == "attention" and site.backends and not _backend_allows(site, evidence):
        return False
    if site.size != "fixed" or available is None:
        return True
    # What the engine fixes is a size that the message must give.
    sizes = {site.size_bytes, site.lse_size_bytes}
    return reading.workspace_bytes(available) in sizes


def _backend_allows(site: Site, evidence: Evidence) -> bool:
    """Whether the attention backends that the log names leave this one."""
    known = {name.upper() for each in _all_backends() for name in each}
    named = [name for name in evidence.backends if name in known]
    upper = {name.upper() for name in site.backends}
    return not named or any(name in upper for name in named)


def _all_backends() -> Iterator[tuple[str, ...]]:
    for engine in ENGINES.values():
        for site in engine.sites:
            if site.selector == "attention":
                yield site.backends
