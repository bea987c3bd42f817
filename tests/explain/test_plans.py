"""Plans of FlashInfer's own kernels: the partial results of a split KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from messages import overflow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]


def test_decode_plan(explain_one: ExplainOne) -> None:
    config = '{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}'
    # 32 heads * 66,000 splits * 128 floats; tmp_s behind it.
    size = 32 * 66_000 * 128 * 4
    found = explain_one([config, overflow("batch_decode_tmp_v", size, 1 << 30)])
    assert found.confidence == "exact"
    assert (found.solutions[0].num_qo_heads, found.solutions[0].rows) == (32, 66_000)
    assert found.need_bytes == size + 32 * 66_000 * 4


def test_shared_rows_of_new_releases(explain_one: ExplainOne) -> None:
    config = '{"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256}'
    # ceil(1,023 * 16 / 16) rows: the plan of 1,023 tiles as FlashInfer reserves it since.
    size = 32 * 1_023 * 256 * 4
    lines = ["flashinfer-python==0.7.4", config, overflow("batch_prefill_tmp_v", size, 1 << 20, 71)]
    found = explain_one(lines)
    assert found.confidence == "exact"
    assert found.need_bytes == size + 32 * 1_023 * 4
    assert any(each.tiles == 1_023 and each.tile == 16 for each in found.solutions)


def test_model_as_people_write_it(explain_one: ExplainOne) -> None:
    # 2 * 148 / 8 tiles of 128 rows.
    message = overflow("batch_prefill_tmp_v", 64 * 37 * 128 * 128 * 4, 134_217_728)
    for words in ("64/8, D=128", "64 q / 8 kv heads, D=128"):
        found = explain_one([f"on a B200 with {words}", message])
        assert (found.confidence, found.solutions[0].tiles) == ("exact", 37)


@pytest.mark.parametrize("shared", [True, False])
def test_installed_header_decides_between_formulas(
    shared: bool, explain_one: ExplainOne, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds of 0.7.0 and 0.7.1 carry either: the header of the very build tells."""
    site = tmp_path / "site"
    header = site / "flashinfer/data/include/flashinfer/attention/scheduler.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("const size_t max_partial_rows = 1;" if shared else "")
    (site / "flashinfer_python-0.7.1.dist-info").mkdir()
    metadata = site / "flashinfer_python-0.7.1.dist-info" / "METADATA"
    metadata.write_text("Name: flashinfer-python\nVersion: 0.7.1\n")
    config = '{"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256}'
    message = overflow("batch_prefill_tmp_v", 24 * 3_584 * 256 * 4, 1 << 20, line=71)
    lines = ["flashinfer-python==0.7.1", config, message]
    assert explain_one(lines).confidence == "consistent"
    monkeypatch.syspath_prepend(str(site))
    found = explain_one(lines)
    assert found.confidence == "exact"
    # ceil(336 * 64 / 6) rows, or 56 tiles of 64.
    assert {(each.tiles, each.tile) for each in found.solutions} >= {
        (336, 64) if shared else (56, 64)
    }
