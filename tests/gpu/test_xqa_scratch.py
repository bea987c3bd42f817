"""The formula of XQA's scratch against what its kernels write on a real card."""

from __future__ import annotations

import pytest
import xqa_painting
from xqa_painting import CASES, PLAIN


@pytest.mark.gpu
@pytest.mark.timeout(600)  # it compiles nine modules
@pytest.mark.usefixtures("xqa_card")
def test_the_kernels_write_what_the_formula_says() -> None:
    results = xqa_painting.measure_all()
    wrong = [result for result in results if result.verdict not in ("equal", "within")]
    assert not wrong
    # No bound that is never reached: the sequences of these fill their page tables.
    full = [result for result in results if result.case.used is None]
    assert [result for result in full if result.verdict != "equal"] == []


def test_the_painted_area_holds_every_case() -> None:
    for case in CASES:
        for sm90 in (False, True):
            expected = xqa_painting.scratch(case.call(160, sm90), xqa_painting.LAYOUTS["C"])
            assert expected.bytes < xqa_painting.SCRATCH_BYTES // 2


def test_the_known_measurements_are_among_the_cases() -> None:
    # 64/8 heads, head dim 128 on 132 SMs: measured on an H200 with FlashInfer 0.6.15.post1
    of_h200 = {
        case.capacity: xqa_painting.scratch(case.call(132, True), xqa_painting.LAYOUTS["C"]).bytes
        for case in CASES
        if case.module == PLAIN and (case.kv_heads, case.batch) == (8, 1)
    }
    assert (of_h200[32_832], of_h200[2112]) == (294_912, 165_888)
