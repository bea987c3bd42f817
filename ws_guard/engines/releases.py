"""Which release of an engine is planned for, and the rows of the tables that hold for it."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from ws_guard.sizing import InputError

from .sglang_sites import SGLANG
from .sites import Engine, EngineRelease, Site
from .vllm_sites import VLLM

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (VLLM, SGLANG)}

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.+-]?[a-z][\w.+-]*|\+[\w.]+)?")


def engine_named(name: str) -> Engine:
    """The engine's tables; raises `InputError` for any other name."""
    if name not in ENGINES:
        raise InputError(f"--engine must be none, {' or '.join(ENGINES)}, got {name!r}")
    return ENGINES[name]


def numbers(text: str) -> tuple[int, int, int]:
    """Release numbers of an engine's version; a candidate counts as its release."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise InputError(f"--engine-version must be a release such as 0.26.0, got {text!r}")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def is_before(version: str | None, release: str) -> bool:
    """Whether a version is known to be older than a release."""
    try:
        return numbers(version or "") < numbers(release)
    except InputError:
        return False


def find_release(engine: Engine, wanted: str | None) -> tuple[EngineRelease, list[str]]:
    """The release to plan for and what to say of it: the named one, the installed, the newest."""
    known = engine.releases
    if wanted is None:
        wanted = installed_version(engine)
        if wanted is None:
            newest = known[-1]
            note = f"{engine.name} is not installed here: judged as {newest.version}, the newest "
            return newest, [f"{note}known; pass --engine-version"]
        notes = [f"judged as the installed {engine.name} {wanted}"]
    else:
        notes = []
    return _nearest(engine, wanted, notes)


def is_assumed(engine: Engine, wanted: str | None) -> bool:
    """Whether the release is a guess: neither named nor installed."""
    return wanted is None and installed_version(engine) is None


def is_newer_than_seen(name: str, wanted: str | None) -> bool:
    """Whether the named release, or the installed one, is newer than any that was looked at."""
    engine = engine_named(name)
    wanted = wanted or installed_version(engine)
    return wanted is not None and numbers(wanted) > numbers(engine.releases[-1].version)


def refuse_another(engine: Engine, wanted: str | None) -> None:
    """`InputError` where a release that somebody names is another engine's and none of this one."""
    if wanted is None or numbers(wanted) in _known(engine):
        return
    for other in ENGINES.values():
        if numbers(wanted) in _known(other):
            raise InputError(
                f"--engine-version {wanted} looks like a release of {other.name}, but the launch "
                f"is {engine.name}'s: pass a release such as {engine.releases[-1].version}"
            )


def _known(engine: Engine) -> list[tuple[int, int, int]]:
    return [numbers(release.version) for release in engine.releases]


def _nearest(engine: Engine, wanted: str, notes: list[str]) -> tuple[EngineRelease, list[str]]:
    known, order = engine.releases, numbers(wanted)
    if order < numbers(known[0].version):
        raise InputError(
            f"{engine.name} {wanted} is older than {known[0].version}, the oldest whose workspaces "
            "are known; pass --engine none with --flashinfer and --workspace-bytes"
        )
    below = [release for release in known if numbers(release.version) <= order]
    nearest = below[-1]
    if re.search(r"(dev|rc|a|b)\d*", wanted):
        told = f"{engine.name} {wanted} is no final release and may lack what {nearest.version} has"
        notes = [*notes, told]
    if numbers(nearest.version) != order:
        reason = "newer than any" if nearest is known[-1] else "between those"
        notes = [*notes, f"{engine.name} {wanted} is {reason} looked at: as {nearest.version}"]
    return nearest, notes


def installed_version(engine: Engine) -> str | None:
    """The engine's installed version from its metadata; the engine itself is not imported."""
    try:
        return version(engine.distribution)
    except PackageNotFoundError:
        return None


def sites_of(engine: Engine, release: EngineRelease) -> tuple[Site, ...]:
    """The rows that hold for a release, in the table's order."""
    order = numbers(release.version)
    return tuple(
        site
        for site in engine.sites
        if numbers(site.since) <= order and (site.before is None or order < numbers(site.before))
    )
