"""Workspaces whose size an engine fixes: no variable helps, and none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from messages import SGLANG, STATS, VLLM, overflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]

#: SGLang's 150 MiB of dense MLA, layout C: 8 * 128 heads * 800 rows * 256 + 1 MiB.
OF_SGLANG = overflow(STATS, 210_763_776, 157_286_400, 71)
#: vLLM's 256 MiB of dense MLA under DCP less layout B's counter: 8 * 128 * 1,024 * 256 + 1 MiB.
OF_VLLM = overflow(STATS, 269_484_032, 260_046_848)
FRAME = '  File "/x/vllm/v1/attention/backends/mla/flashinfer_mla.py", line 330, in forward_mqa'


def _if_this_is(found: Finding, engine: str) -> str:
    (note,) = [note for note in found.notes if note.startswith(f"if this is {engine}: ")]
    return note


@pytest.mark.parametrize(
    ("line", "engine", "flag", "other"),
    [
        (OF_SGLANG, "sglang", "--max-running-requests", ("vllm", VLLM)),
        (OF_VLLM, "vllm", "--max-num-seqs", ("sglang", SGLANG)),
    ],
)
def test_the_line_alone(
    line: str, engine: str, flag: str, other: tuple[str, str], explain_one: ExplainOne
) -> None:
    found = explain_one([line])
    note = _if_this_is(found, engine)
    assert flag in note
    assert "no variable changes it" in note
    assert VLLM not in note
    assert SGLANG not in note
    # The other engine has no workspace of that size but by its variable.
    assert f"{other[1]}=" in _if_this_is(found, other[0])


def test_a_size_that_follows_a_variable_as_well(explain_one: ExplainOne) -> None:
    """394 MiB are vLLM's default, and fixed nowhere."""
    found = explain_one([overflow(STATS, 1_611_661_312, 404_750_336)])
    assert f"{VLLM}=" in _if_this_is(found, "vllm")
    assert f"{SGLANG}=" in _if_this_is(found, "sglang")


def test_a_frame_straight_above_its_error(explain_one: ExplainOne) -> None:
    found = explain_one([FRAME, OF_VLLM])
    # (256 - 8 - 1) MiB / (8 * 128 * 256) = 988 rows.
    assert (found.set, found.env) == (("--max-num-seqs 988",), {})


def test_the_size_alone_tells_the_site(explain_one: ExplainOne) -> None:
    """Without a frame sparse MLA, whose size follows the variable, might have been set to it."""
    found = explain_one(["vLLM API server version 0.26.0", "tp=8 dcp=8", OF_VLLM])
    assert (found.set, found.env) == (("--max-num-seqs 988",), {})
