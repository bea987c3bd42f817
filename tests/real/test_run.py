"""`ws-guard run` around real FlashInfer: its own Python, its own launcher, its own refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def run(native_library: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run(rows)`: the worker under `ws-guard run`, its board at `tmp_path / "board"`."""

    def run_worker(rows: int) -> subprocess.CompletedProcess[str]:
        assert native_library.exists()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("WS_GUARD_")}
        own = {"WS_GUARD_LISTEN": "127.0.0.1:0", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "ws_guard", "run", "--board", str(tmp_path / "board")]
        command += ["--", sys.executable, str(HERE / "overflow_worker.py"), str(rows)]
        return subprocess.run(
            command,
            env=inherited | own,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    return run_worker


def test_overflow_death(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run(12_288)
    assert done.returncode == 1
    # FlashInfer's own words, and ours: the same two numbers.
    assert "with size 1611661312 and alignment 16, but only 404750336 bytes" in done.stderr
    told = done.stderr[done.stderr.index("ws-guard post-mortem") :]
    assert "12,288     64      1  1,620,049,920  1,611,661,312  404,750,336      1" in told
    assert "rank 0/0: trtllm_paged_attention_decode" in told
    # 394 MiB and the slab.
    assert "set: workspace ws0 to 2,024,800,256 B (1.9 GiB), or steps to at most 3,080 rows" in told


def test_the_same_steps_made_to_fit(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = run(3_080)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("\n") == 1  # where the exporter is
    assert os.listdir(tmp_path / "board") == []
