"""Links between documents lead to files and headings that are there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from blocks import DOCUMENTS, ROOT, prose_of, relative

if TYPE_CHECKING:
    from pathlib import Path

_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*([^()\s]+)\s*\)")


def anchors_of(path: Path) -> set[str]:
    """The names that GitHub gives a document's headings."""
    found: dict[str, int] = {}
    names = set()
    for title in re.findall(r"^#+ (.+?)\s*$", prose_of(path), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        times = found.get(name, 0)
        found[name] = times + 1
        names.add(f"{name}-{times}" if times else name)
    return names


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_links_lead_somewhere(path: Path) -> None:
    dead = []
    for link in _LINK.findall(prose_of(path)):
        target, _, anchor = link.partition("#")
        if re.match(r"https?://", link):
            continue
        to = (path.parent / target).resolve() if target else path
        if not to.exists() or (anchor and anchor not in anchors_of(to)):
            dead.append(link)
    assert dead == []


def test_every_document_is_reached_from_the_readme() -> None:
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        path = ahead.pop()
        if path in seen:
            continue
        seen.add(path)
        targets = (link.partition("#")[0] for link in _LINK.findall(prose_of(path)))
        found = ((path.parent / target).resolve() for target in targets if target)
        ahead += [each for each in found if each.suffix == ".md" and each.exists()]
    assert set(DOCUMENTS) <= seen
