"""The tables of sites hold together."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ws_guard.engines.releases import ENGINES, find_release, numbers
from ws_guard.engines.sites import MODEL_KINDS, Engine
from ws_guard.sizing import ENTRIES, layouts_of_release

MIB = 1 << 20
ENGINE = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@ENGINE
def test_releases_are_in_order_and_ship_a_known_flashinfer(engine: Engine) -> None:
    orders = [numbers(release.version) for release in engine.releases]
    assert orders == sorted(set(orders))
    for release in engine.releases:
        assert len(layouts_of_release(release.flashinfer)) == 1


@ENGINE
def test_rows_of_a_site_do_not_overlap(engine: Engine) -> None:
    for name in {site.workspace for site in engine.sites}:
        spans = sorted(
            (numbers(site.since), site.before and numbers(site.before))
            for site in engine.sites
            if site.workspace == name
        )
        assert all(before == since for (_, before), (since, _) in pairwise(spans))
        assert spans[-1][1] is None


@ENGINE
def test_rows_speak_in_known_words(engine: Engine) -> None:
    for site in engine.sites:
        assert set(site.kinds) <= set(MODEL_KINDS)
        assert set(site.default_kinds) <= set(site.kinds)
        assert site.entry in ENTRIES
        assert (site.env is None) == (site.size == "fixed")
        assert site.backends or site.default_kinds


@pytest.mark.parametrize(
    ("release", "flashinfer"),
    [
        ("0.25.1", "0.6.13"),
        ("0.26.0", "0.6.14"),
        ("0.27.1", "0.6.16.post3"),
        ("0.29.0", "0.6.18"),
        ("0.30.0", "0.6.18.post1"),
        ("0.32.0", "0.7.0.post1"),
        ("0.33.0", "0.7.2.post1"),
    ],
)
def test_flashinfer_of_a_vllm_release(release: str, flashinfer: str) -> None:
    assert find_release(ENGINES["vllm"], release)[0].flashinfer == flashinfer
