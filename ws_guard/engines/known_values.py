"""The values and keys that the engines take for flags that choose backends and sizes.

`vllm_values.txt` and `sglang_values.txt` hold a flag and one of its values a line, of the releases
whose sources were read: vLLM 0.26.0 and 0.33.0 (`AttentionBackendEnum`, `MLAPrefillBackendEnum`,
`CacheDType`, `All2AllBackend`, `PerformanceMode`), SGLang 0.5.23 (`arg_groups`). Of a flag that
takes JSON they are its keys (the fields of `AttentionConfig` and `SpeculativeConfig`), and
`--attention-config.backend` has the values of a key. `tests/engines/test_known_values.py` holds
them against an installed engine.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ws_guard.sizing import InputError

from .flags import instead_of

#: Likeness from which on a value is taken for a misspelt one: `fp9` is 0.67 like `fp8`.
_ALIKE = 0.6
#: More values than these are not listed.
_MOST_LISTED = 14
#: Keys that bear on sizes: one that may have meant another is without a bearing.
_KEYS_READ = ("backend", "mla_prefill_backend", "use_trtllm_attention", "num_speculative_tokens")


@functools.cache
def known_values(engine: str) -> Mapping[str, tuple[str, ...]]:
    """The values (or keys) by flag."""
    text = Path(__file__).with_name(f"{engine}_values.txt").read_text(encoding="ascii")
    told: dict[str, tuple[str, ...]] = {}
    for flag, value in (line.split() for line in text.splitlines()):
        told[flag] = (*told.get(flag, ()), value)
    return told


def notes_on_values(
    engine: str, values: Mapping[str, Any], flags: Mapping[str, str], *, newer: bool
) -> Iterator[str]:
    """Says which values no release looked at has. `InputError` for them unless `newer`.

    `values` are those of a command by field, `flags` each field's flag. A backend that does not
    exist would make every site look unused: the plan would be a wrong all-clear.
    """
    for field, value in values.items():
        for told in _wrong(known_values(engine), engine, flags.get(field, ""), value):
            refused, text = told
            if refused and not newer:
                raise InputError(text)
            yield f"not known here: {text}"


def _wrong(
    known: Mapping[str, tuple[str, ...]], engine: str, flag: str, value: object
) -> Iterator[tuple[bool, str]]:
    """(whether to refuse, what to say) of a flag's value, or of the keys of a JSON one."""
    taken = known.get(flag)
    if taken is None or value is None:
        return
    if not isinstance(value, dict):
        text = str(value)
        if text not in taken and text.upper() not in taken:
            hint = _hint(text, taken)
            yield True, f"{flag} {text} of the launch command is no value that {engine} has{hint}"
        return
    for key, inner in value.items():
        if key in taken:
            yield from _wrong(known, engine, f"{flag}.{key}", inner)
            continue
        meant = _nearest(key, taken)
        said = f"{flag} of the launch command: {key} is no key that {engine} has"
        yield meant in _KEYS_READ, f"{said}{f': did you mean {meant}?' if meant else ''}"


def _nearest(text: str, taken: Collection[str]) -> str | None:
    """What is most alike, whatever the case; None where nothing is."""
    folded = {each.lower(): each for each in taken}
    nearest = get_close_matches(text.lower(), folded, n=1, cutoff=_ALIKE)
    return folded[nearest[0]] if nearest else None


def _hint(text: str, taken: Collection[str]) -> str:
    meant = _nearest(text, taken)
    if "$" not in text and meant:
        return f": did you mean {meant}?"
    listed = f"write {' or '.join(taken)}" if len(taken) <= _MOST_LISTED else "see its --help"
    return f": {instead_of(text, listed)}"
