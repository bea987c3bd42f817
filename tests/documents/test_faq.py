"""docs/FAQ.md answers every public report that we know of, with the sizes that it had."""

from __future__ import annotations

import json

import pytest
from blocks import ROOT

RECORDS = [
    json.loads(line)
    for line in (ROOT / "tests" / "data" / "reports.jsonl").read_text().splitlines()
]
FAQ = (ROOT / "docs" / "FAQ.md").read_text()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["report"])
def test_the_report_is_answered(record: dict[str, dict[str, int] | str]) -> None:
    name, numbers = str(record["report"]), record.get("numbers", {})
    if "#" in name:
        project, _, number = name.partition("#")
        assert f"[{name}](https://github.com/{project}/issues/{number})" in FAQ
    else:
        assert name in " ".join(FAQ.lower().split())
    assert isinstance(numbers, dict)
    if size := numbers.get("size"):
        assert str(size) in FAQ or f"{size:,}" in FAQ
