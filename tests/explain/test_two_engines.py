"""Two deployments in one stream, one of each engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from messages import CRASH, FLAGS, HEADS, STATS, VLLM, overflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    Explain = Callable[..., list[Finding]]

OF_SGLANG = [
    ("[2026-09-01 10:00:00] server_args=ServerArgs(model_path='org/m', tp_size=8, dcp_size=8, "
    "attention_backend='trtllm_mla', max_running_requests=1024, chunked_prefill_size=16384)"),
    "[2026-09-01 10:02:00 TP3] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/s/python/sglang/srt/layers/attention/trtllm_mla_backend.py", line 9, in forward',
    # 8 * 128 heads * 800 rows * 256 + 1 MiB in SGLang's 150 MiB.
    overflow(STATS, 210_763_776, 157_286_400, 71),
]  # fmt: skip
FRAME = '  File "/x/vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py", line 330, in forward'
OF_VLLM = ["vLLM API server version 0.26.0", FLAGS, HEADS, f"{VLLM}=413138944", FRAME, CRASH]


@pytest.mark.parametrize("logs", [(OF_SGLANG, OF_VLLM), (OF_VLLM, OF_SGLANG)], ids=["sv", "vs"])
def test_each_gets_the_remedy_of_its_engine(
    logs: tuple[list[str], list[str]], explain: Explain
) -> None:
    found = {each.size: each for each in explain([*logs[0], *logs[1]])}
    of_sglang, of_vllm = found[210_763_776], found[1_611_661_312]
    # (150 - 1) MiB / (8 * 128 * 256) = 596 rows.
    assert (of_sglang.set, of_sglang.env) == (("--max-running-requests 596",), {})
    # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB.
    assert of_vllm.env == {VLLM: "2561671168"}
    # Whose flags are whose is not certain.
    assert {of_sglang.confidence, of_vllm.confidence} == {"consistent"}
    assert any("the log is of vllm and sglang" in note for note in of_sglang.notes)


def test_a_traceback_alone_tells_the_engine(explain: Explain) -> None:
    (found,) = explain([*OF_SGLANG[2:], "INFO this is not vLLM"])
    assert found.set == ("--max-running-requests 596",)
