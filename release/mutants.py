"""Compares what mutmut left alive with what a document explains: python -m release.mutants FILE

Ends with 1 where a change went unnoticed that the document does not show, or where it shows one
that is noticed by now. In the document a change is its new line, in backquotes, as in the source.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

MUTANTS = Path("mutants/ws_guard/sizing")
#: mutmut's exit codes: tests passed, there were no tests; None: not tried.
_PASSED, _NO_TESTS = 0, 33


class Survivor(NamedTuple):
    """A function, and the line of it that could be changed so."""

    function: str
    line: str


def main(arguments: list[str]) -> int:
    """0: every survivor is explained, and no other."""
    text = Path(arguments[0]).read_text()
    explained = set(re.findall(r"`([^`\n]+)`", text))
    found, tried = survivors(MUTANTS)
    problems = [
        f"not explained: {each.function}: {each.line}"
        for each in found
        if each.line not in explained
    ]
    alive = {each.line for each in found}
    rows = re.findall(r"^\| `([^`\n]+)` \|", text, re.MULTILINE)
    problems += [f"noticed by now: {line}" for line in rows if line not in alive]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{tried:,} changes, {len(found)} survived, {len(problems)} problems")
    return 1 if problems or not tried else 0


def survivors(folder: Path) -> tuple[list[Survivor], int]:
    """What mutmut left alive below `folder`, and how many changes it tried."""
    found: list[Survivor] = []
    tried = 0
    for results in sorted(folder.glob("*.meta")):
        codes: dict[str, int | None] = json.loads(results.read_text())["exit_code_by_key"]
        if None in codes.values():
            raise SystemExit(f"{results}: mutmut did not come to its end")
        source = results.with_suffix("").read_text()
        tried += len(codes)
        for key, code in codes.items():
            if code in (_PASSED, _NO_TESTS):
                found += _changed_lines(source, key.rpartition(".")[2])
    return found, tried


def _changed_lines(source: str, name: str) -> list[Survivor]:
    """mutmut keeps the original and every change of a function beside one another."""
    function = name.partition("__mutmut_")[0]
    before = _body(source, f"{function}__mutmut_orig")
    after = _body(source, name)
    title = re.sub("^xǁ|^x_", "", function).replace("ǁ", ".")
    pairs = zip(before, after, strict=False)
    changed = [Survivor(title, new.strip()) for old, new in pairs if old != new]
    return changed or [Survivor(title, f"{name}: lines came or went")]


def _body(source: str, name: str) -> list[str]:
    found = re.search(
        rf"^( *)def {re.escape(name)}\b.*?(?=^\1(?:@|def |class |[^\s)])|\Z)",
        source,
        re.DOTALL | re.MULTILINE,
    )
    if found is None:
        raise SystemExit(f"there is no {name} among the mutants: was the tree changed?")
    return found[0].splitlines()[1:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
