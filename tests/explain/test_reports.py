"""Every public report with a size: written as a log in several formats, then explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from formats import FORMATS
from report_cases import CASES, Case

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

RECORDS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "reports.jsonl").read_text().splitlines()
]


def test_no_report_with_a_size_is_left_out() -> None:
    with_size = {each["report"] for each in RECORDS if "size" in each.get("numbers", {})}
    assert with_size == {case.report for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.report)
@pytest.mark.parametrize("wrap", FORMATS, ids=lambda wrap: wrap.__name__)
def test_report(
    case: Case, wrap: Callable[[list[str]], bytes], explain_one: Callable[..., Finding]
) -> None:
    found = explain_one(case.lines, wrap)
    numbers = next(each["numbers"] for each in RECORDS if each["report"] == case.report)
    assert found.size == numbers["size"]
    if "available" in numbers and numbers["available"] is not None:
        told = found.available
        # The old wording does not tell it; torch and vLLM round to a hundredth of a MiB.
        assert told is None or abs(told - numbers["available"]) <= 10_486
    assert found.confidence == case.confidence
    assert list(found.workspace_bytes) == case.workspaces
    assert found.need_bytes == case.need
    assert found.recommended_workspace_bytes == case.recommended
    assert found.env == case.env
    if case.solution is not None:
        told = [each.as_dict() for each in found.solutions]
        assert any(case.solution.items() <= each.items() for each in told)
        if case.confidence == "exact":
            assert case.solution.items() <= told[0].items()
    for key, value in case.more.items():
        if key == "note":
            assert any(value in note for note in found.notes), found.notes
        else:
            assert getattr(found, key) == value
