"""Prints what CHANGELOG.md says of a release: python -m release.notes v0.1.0

Ends with 1 where the tag is not that of `ws_guard/version.py`, or the changelog lacks the release.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(arguments: list[str]) -> int:
    """The notes on standard output, or on standard error what is wrong with the tag."""
    (tag,) = arguments
    text = (ROOT / "ws_guard" / "version.py").read_text()
    version = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]
    if tag != f"v{version}":
        print(f"tag {tag}, but ws_guard/version.py says {version}", file=sys.stderr)
        return 1
    notes = notes_of(version, (ROOT / "CHANGELOG.md").read_text())
    if not notes:
        print(f"CHANGELOG.md has no section '## {version}'", file=sys.stderr)
        return 1
    print(notes)
    return 0


def notes_of(version: str, changelog: str) -> str:
    """The section of a release, without its heading; empty where there is none."""
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        if heading.split()[:1] == [version]:
            return text.strip()
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
