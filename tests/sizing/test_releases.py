"""Releases order as the package index orders them; each falls into the layout it shipped."""

from __future__ import annotations

import pytest

from ws_guard.sizing import InputError, is_newer_than_seen, layouts_of_release, sm_count_of_gpu


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("0.3.0", "A"),
        ("0.6.8.post1", "A"),
        ("0.6.11.post3", "A"),
        ("0.6.12.dev20260601", "AB"),
        ("0.6.12rc1", "AB"),
        ("0.6.12", "B"),
        ("0.6.14.dev20260705", "B"),
        ("0.6.14", "B"),
        ("0.6.15.dev1", "BC"),
        ("0.6.15.post1", "C"),
        ("0.6.16.post3+cu130", "C"),
        ("0.7", "C"),
        ("v0.7.4", "C"),
        ("1.0.0", "C"),
    ],
)
def test_layouts(release: str, names: str) -> None:
    assert "".join(layout.name for layout in layouts_of_release(release)) == names


@pytest.mark.parametrize("release", ["", "main", "0.6.x", "0.6.14 or so", "6"])
def test_what_is_no_release(release: str) -> None:
    with pytest.raises(InputError, match="must be a release such as"):
        layouts_of_release(release)


def test_older_than_any_known_layout() -> None:
    with pytest.raises(InputError, match=r"older than 0\.3\.0"):
        layouts_of_release("0.2.14")


def test_newer_than_seen() -> None:
    assert is_newer_than_seen("0.7.5")
    assert not is_newer_than_seen("0.7.4.post1")


def test_gpus() -> None:
    assert sm_count_of_gpu("B200") == 148
    with pytest.raises(InputError, match="gpu must be one of b200, gb200"):
        sm_count_of_gpu("h200")
