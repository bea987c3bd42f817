"""XQA's contract in the other releases that the tests run on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ASK = """
import json
from ws_guard.contract import installed_xqa
found = installed_xqa()
names = ("run_sm90_fp8_mha", "multiProcessorCount", "nbKHeads", "output", "q", "maxSeqLen",
         "batchSize", "qSeqLen", "qCuSeqLens", "semaphores", "scratch")
at = {op: [found.position(op, name) for name in names] for op in found.signatures}
print(json.dumps([found.release, found.reasons, at]))
"""


@pytest.mark.parametrize(
    ("release", "positions"),
    # Counted by hand in xqa_wrapper.cu of the release
    [
        ("0.6.15.post1", [0, 1, 2, 6, 8, 15, 17, 20, None, 22, 23]),
        ("0.7.4", [0, 1, 2, 6, 8, 15, 17, 20, 21, 23, 24]),
    ],
)
def test_another_release_is_understood(
    run_under: Callable[..., str], release: str, positions: list[int | None]
) -> None:
    found, reasons, at = json.loads(run_under(release, "-c", ASK))
    assert (found, reasons) == (release, {})
    assert at["xqa_wrapper"] == positions
    assert at["xqa_wrapper_mla"] == [None, 0, None, 3, 4, 8, 10, None, None, 13, 14]
