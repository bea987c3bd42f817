"""Every flag that the engines' parsers take, and what a misspelt one may have meant.

`vllm_flags.txt` and `sglang_flags.txt` are the spellings with the number of their values (0, 1, ?,
* or +), of all releases looked at; `tests/real/vllm/test_flags.py` holds them against the parsers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

#: Likeness from which on a flag is taken for a misspelt one: `--max-batch-tokens` is 0.86 like
#: `--max-num-batched-tokens`, `--max-seq-len` 0.79 like `--max-model-len`.
_ALIKE = 0.75
#: So many of the spellings that are most alike are looked at, where they are short.
_NEAREST = 20
_GLUED = re.compile(r"(-[a-z]+)(\d+)")
#: What people shorten within a flag: `--decode-cp` for `--decode-context-parallel-size`.
_SHORTENED = {
    "tp": "tensor-parallel",
    "cp": "context-parallel",
    "dp": "data-parallel",
    "pp": "pipeline-parallel",
}
#: `plan`'s own, that somebody may write behind the `--`.
_OWN = (
    "--heads",
    "--max-q-len",
    "--workspace-bytes",
    "--flashinfer",
    "--gpu",
    "--sm-count",
    "--engine",
    "--engine-version",
    "--sweep",
    "--plot",
    "--json",
)


class KnownFlags(NamedTuple):
    """The flags of an engine's parser: the number of values by spelling."""

    values: Mapping[str, str]

    def complete(self, name: str) -> str | None:
        """The flag that argparse takes `name` for: itself, or the only one that begins so."""
        if name in self.values:
            return name
        if name[:2] in self.values:
            return name  # `-O3`, `-n2`: the value is glued on
        hits = [spelling for spelling in self.values if spelling.startswith(name)]
        return hits[0] if len(hits) == 1 else None

    def meant(self, name: str, read: Collection[str], lent: Mapping[str, str]) -> str | None:
        """What to write instead of a flag that the engine does not have; None where it is far off.

        `read` are the spellings that bear on sizes; `lent` are those of another engine, with what
        this one calls the same.
        """
        # argparse tells capitals apart, and no flag that bears on sizes has one.
        name = name.lower()
        glued = _GLUED.fullmatch(name)
        if glued and glued[1] in read:
            return f"{glued[1]} {glued[2]}"
        sizes = {**lent, **{spelling: spelling for spelling in read}}
        if name in sizes:
            return sizes[name]
        begun = [spelling for spelling in read if spelling.startswith((name, _spelt_out(name)))]
        if begun and name != "--":
            return " or ".join(begun)
        if name in _OWN:
            return f"{name} of ws-guard plan, before the command"
        if name.startswith("--no-") and f"--{name.removeprefix('--no-')}" in self.values:
            return None
        # Where a flag without a bearing is nearer no size is wrong; the engine will refuse it.
        # Short ones are all alike: one of a size among the nearest will do.
        most = 1 if name.startswith("--") else _NEAREST
        nearest = get_close_matches(name, {*self.values, *sizes}, n=most, cutoff=_ALIKE)
        hits = dict.fromkeys(sizes[each] for each in nearest if each in sizes)
        return " or ".join(hits) or None


def _spelt_out(name: str) -> str:
    """A long flag with the parts that people shorten written out."""
    return "-".join(_SHORTENED.get(part, part) for part in name.split("-"))


@functools.cache
def known_flags(engine: str) -> KnownFlags:
    """The flags of an engine by its name, as they are in the releases looked at."""
    text = Path(__file__).with_name(f"{engine}_flags.txt").read_text(encoding="ascii")
    words = text.split()
    return KnownFlags(dict(zip(words[::2], words[1::2], strict=True)))
