"""The verdict on an installed launcher: do we know how it carves?"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ws_guard.sizing import (
    ENTRY_OF_OP,
    LAYOUTS,
    NEWEST_SEEN,
    OLDEST_SEEN,
    Entry,
    InputError,
    Layout,
    layouts_of_release,
)
from ws_guard.sizing.layouts import CarveStep
from ws_guard.sizing.releases import parse_release

from .cpp import SourceError
from .facts import Facts, read_facts
from .source import LauncherSource, installed_source

Verdict = Literal["verified", "unverified", "mismatch"]

#: Parameters without which a native call cannot be accounted for.
_NEEDED = ("query", "workspace_buffer", "max_q_len", "batch_size", "sm_count", "workspace_size")


class Contract(NamedTuple):
    """What is known of one FlashInfer: `layout` and `signatures` are empty on a mismatch.

    `signatures` maps each exported op to its parameter names in native order; `reason` says why
    the verdict is not `verified`.
    """

    verdict: Verdict
    reason: str
    release: str
    layout: Layout | None
    signatures: dict[str, tuple[str, ...]]
    source: str

    def position(self, op: str, parameter: str) -> int | None:
        """Zero-based native position of a parameter, None where the op has none of that name."""
        names = self.signatures[op]
        return names.index(parameter) if parameter in names else None


def installed_contract() -> Contract:
    """Judge the installed FlashInfer; raises `NotInstalledError` where there is none."""
    return judge(installed_source())


def judge(source: LauncherSource) -> Contract:
    """Compare a launcher source with the known layouts."""
    where = str(source.path)
    try:
        facts = read_facts(source.text)
        missing = _missing_parameter(facts)
        if missing:
            raise SourceError(missing)
    except SourceError as error:
        return Contract("mismatch", str(error), source.release, None, {}, where)
    except (ArithmeticError, IndexError, ValueError, KeyError, RecursionError) as error:
        # The reader tripped over source that is no C++ that it knows.
        reason = f"the source cannot be read ({type(error).__name__}: {error})"
        return Contract("mismatch", reason, source.release, None, {}, where)
    layout = next((known for known in LAYOUTS.values() if not _differences(facts, known)), None)
    if layout is None:
        reason = "; ".join(_differences(facts, _nearest(facts, source.release)))
        return Contract("mismatch", reason, source.release, None, {}, where)
    doubt = _doubt(source.release, layout)
    verdict: Verdict = "unverified" if doubt else "verified"
    return Contract(verdict, doubt, source.release, layout, facts.signatures, where)


def _missing_parameter(facts: Facts) -> str:
    for op, names in facts.signatures.items():
        needed = list(_NEEDED)
        entry = ENTRY_OF_OP[op]
        if any(step.when == "lse" for step in facts.layout.steps[entry]):
            needed.append("lse")
        for name in needed:
            if name not in names:
                return f"{op} has no parameter {name}"
    return ""


def _doubt(release: str, layout: Layout) -> str:
    """Why a release whose facts give a known layout is not verified all the same; or nothing."""
    try:
        parsed = parse_release(release)
        expected = layouts_of_release(release)
    except InputError as error:
        return str(error)
    if not parsed.final:
        return f"{release} is not a final release"
    oldest, newest = (parse_release(seen).numbers for seen in (OLDEST_SEEN, NEWEST_SEEN))
    if not oldest <= parsed.numbers <= newest:
        return f"{release} is outside {OLDEST_SEEN} to {NEWEST_SEEN}, the releases looked at"
    if layout not in expected:
        return f"{release} carves by layout {layout.name}, {expected[-1].name} was expected"
    return ""


def _nearest(facts: Facts, release: str) -> Layout:
    try:
        return layouts_of_release(release)[-1]
    except InputError:
        return min(LAYOUTS.values(), key=lambda known: len(_differences(facts, known)))


def _differences(facts: Facts, known: Layout) -> list[str]:
    """Every fact in which a source differs from a known layout, in words."""
    found = facts.layout
    differences = [
        f"{entry} carves {_words(steps)}, layout {known.name} carves {_words(known.steps[entry])}"
        for entry, steps in found.steps.items()
        if steps != known.steps[entry]
    ]
    entries: frozenset[Entry] = frozenset(found.steps)
    if found.external_counter != known.external_counter & entries:
        differences.append(
            f"external counter for {_names(found.external_counter)}, "
            f"layout {known.name} has it for {_names(known.external_counter & entries)}"
        )
    for name, ours, theirs in (
        ("stats guard", found.guard_bytes, known.guard_bytes),
        ("q rounding", found.q_rounding, known.q_rounding),
        ("counter size", found.counter_bytes, known.counter_bytes),
    ):
        if ours != theirs:
            differences.append(f"{name} is {ours:,}, layout {known.name} has {theirs:,}")
    return differences


def _words(steps: tuple[CarveStep, ...]) -> str:
    texts = [f"{s.slab} ({s.size}{' if LSE' if s.when == 'lse' else ''})" for s in steps]
    return ", ".join(texts) or "nothing"


def _names(entries: frozenset[Entry]) -> str:
    return ", ".join(sorted(entries)) or "none"
