"""What vLLM itself writes of a failed step, explained: it tells the heads that the log lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ws_guard.explain.logs import explain_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Ran

    from ws_guard.explain.finding import Finding

pytestmark = pytest.mark.engine

FLAGS = (
    "tensor_parallel_size=8 decode_context_parallel_size=8 max_num_batched_tokens=16384 "
    "max_num_seqs=24"
)
#: 64 heads and 12,288 rows, in a workspace of 512 MiB.
CRASH = (
    "RuntimeError: Error in function 'aligned_alloc' at flashinfer/allocator.h:71: Buffer overflow "
    "when allocating memory for trtllm_gen_softmax_workspace with size 1611661312 and alignment "
    "16, but only 536870912 bytes available in AlignedAllocator."
)


def explained(lines: list[str], directory: Path) -> Finding:
    (directory / "log").write_text("\n".join([FLAGS, CRASH, *lines, ""]))
    (found,) = explain_log(str(directory / "log"), {"HF_HUB_CACHE": "/nowhere"})
    return found


def test_the_step_that_failed(run: Callable[..., Ran], tmp_path: Path) -> None:
    start, step = run("failed_step.py", "12288").told["written"]
    # 394 MiB + 8 * heads * 16,384 * 256 + 1 MiB: 128 heads, as long as nobody knows, then 64.
    assert explained([start], tmp_path).recommended_workspace_bytes == 4_709_154_816
    found = explained([start, step], tmp_path)
    assert (found.solutions[0].num_qo_heads, found.solutions[0].batch_size) == (64, 12_288)
    assert found.recommended_workspace_bytes == 2_561_671_168
