"""Releases order as the package index orders them; each falls into the layout it shipped."""

from __future__ import annotations

import pytest

from ws_guard.sizing import InputError, is_newer_than_seen, layouts_of_release, sm_count_of_gpu
from ws_guard.sizing.releases import parse_release


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
    with pytest.raises(InputError) as refused:
        layouts_of_release(release)
    assert str(refused.value) == f"flashinfer must be a release such as 0.7.4, got {release!r}"


def test_older_than_any_known_layout() -> None:
    with pytest.raises(InputError) as refused:
        layouts_of_release("0.2.14")
    assert str(refused.value) == (
        "flashinfer 0.2.14 is older than 0.3.0, the oldest whose workspace layout is known; "
        "pass a newer release"
    )


@pytest.mark.parametrize(
    ("version", "numbers", "final"),
    [
        (" 0.7.4\n", (0, 7, 4), True),
        ("v12.34.56.post7+cu130.g1", (12, 34, 56), True),
        ("0.7", (0, 7, 0), True),
        ("0.7.4rc1", (0, 7, 4), False),
        ("0.7.4.b2", (0, 7, 4), False),
        ("0.7.4a3.post1", (0, 7, 4), False),
        ("0.7.4-dev", (0, 7, 4), False),
        ("0.7.4.post1.dev20261201", (0, 7, 4), False),
    ],
)
def test_what_of_a_version_orders_it(
    version: str, numbers: tuple[int, int, int], final: bool
) -> None:
    assert parse_release(version) == (numbers, final)


def test_newer_than_seen() -> None:
    assert is_newer_than_seen("0.7.5")
    assert not is_newer_than_seen("0.7.4.post1")


def test_gpus() -> None:
    assert sm_count_of_gpu("B200") == 148
    assert [sm_count_of_gpu(name) for name in ("gb200", "B300", "gb300")] == [152, 160, 160]
    with pytest.raises(InputError) as refused:
        sm_count_of_gpu("h200")
    assert str(refused.value) == (
        "gpu must be one of b200, gb200, b300, gb300 (or pass sm_count), got 'h200'"
    )
