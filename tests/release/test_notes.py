"""The notes of a release: the tag must be the version, and the changelog must know it."""

from __future__ import annotations

import pytest

from release import notes
from ws_guard.version import __version__

pytestmark = pytest.mark.release

CHANGELOG = """# Changelog

## Unreleased

- to come

## 0.10.0 (2026-12-24)

### Added

- a thing

## 0.1.0

- the first
"""


def test_the_section_of_a_release() -> None:
    assert notes.notes_of("0.10.0", CHANGELOG) == "### Added\n\n- a thing"
    assert notes.notes_of("0.1.0", CHANGELOG) == "- the first"
    assert notes.notes_of("0.1", CHANGELOG) == ""


@pytest.mark.parametrize("tag", [__version__, f"v{__version__}.1", "main"])
def test_a_tag_that_is_not_the_version(tag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert notes.main([tag]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert f"tag {tag}, but ws_guard/version.py says {__version__}" in told.err


def test_the_tag_of_this_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the release its changes stand under Unreleased: then there is nothing to publish."""
    text = (notes.ROOT / "CHANGELOG.md").read_text()
    expected = notes.notes_of(__version__, text)
    assert notes.main([f"v{__version__}"]) == (0 if expected else 1)
    told = capsys.readouterr()
    assert told.out.strip() == expected
    assert bool(told.err) == (expected == "")
