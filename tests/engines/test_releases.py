"""Which release is planned for."""

from __future__ import annotations

import pytest

from ws_guard.engines import releases
from ws_guard.engines.releases import ENGINES, engine_named, find_release, sites_of
from ws_guard.sizing import InputError

VLLM = ENGINES["vllm"]


@pytest.mark.parametrize(
    ("wanted", "release", "words"),
    [
        ("0.26.0", "0.26.0", ""),
        ("v0.26.0", "0.26.0", ""),
        ("0.30.0rc1", "0.30.0", "is no final release"),
        ("0.33.0+cu130", "0.33.0", ""),
        ("0.26.1.dev12+gabc", "0.26.0", "0.26.1.dev12+gabc is between those looked at: as 0.26.0"),
        ("0.40.1", "0.33.0", "0.40.1 is newer than any looked at: as 0.33.0"),
    ],
)
def test_named(wanted: str, release: str, words: str) -> None:
    found, notes = find_release(VLLM, wanted)
    assert found.version == release
    assert words in "".join(notes)
    assert bool(words) is bool(notes)


def test_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "version", lambda _: "0.29.0")
    found, notes = find_release(VLLM, None)
    assert (found.version, notes) == ("0.29.0", ["judged as the installed vllm 0.29.0"])


def test_none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> str:
        raise releases.PackageNotFoundError

    monkeypatch.setattr(releases, "version", absent)
    found, notes = find_release(VLLM, None)
    assert found.version == "0.33.0"
    assert "not installed here: judged as 0.33.0, the newest known" in notes[0]


@pytest.mark.parametrize("wanted", ["latest", "", "1", "0.x"])
def test_what_is_no_release(wanted: str) -> None:
    with pytest.raises(InputError, match="--engine-version must be a release"):
        find_release(VLLM, wanted)


def test_older_than_any_known() -> None:
    with pytest.raises(InputError, match=r"0\.24\.0 is older than 0\.25\.0"):
        find_release(VLLM, "0.24.0")


def test_unknown_engine() -> None:
    with pytest.raises(InputError, match="none, vllm or sglang, got 'tgi'"):
        engine_named("tgi")


def test_rows_of_a_release() -> None:
    sizes = {
        release: {
            site.workspace: site.size for site in sites_of(VLLM, find_release(VLLM, release)[0])
        }
        for release in ("0.29.0", "0.30.0")
    }
    assert (sizes["0.29.0"]["sparse_mla"], sizes["0.30.0"]["sparse_mla"]) == ("env", "computed")
