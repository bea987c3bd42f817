"""Every known limit of every release, through the command line, exactly as the facts tell it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

MIB = 1 << 20
B, C = ("0.25.0", "0.25.1", "0.26.0"), ("0.27.1", "0.28.0", "0.29.0")
FIXED = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")


def plan(arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "ws_guard", "plan", *arguments.split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def site(answer: dict[str, Any], workspace: str) -> dict[str, Any]:
    return next(each for each in answer["sites"] if each["workspace"] == workspace)


def threshold(arguments: str, workspace: str) -> int | None:
    value: int | None = site(plan(arguments)[1], workspace)["overflow_threshold_batch"]
    return value


@pytest.mark.parametrize(("release", "rows"), [*((r, 1540) for r in B), *((r, 1572) for r in C)])
def test_sparse_mla(release: str, rows: int) -> None:
    code, answer = plan(
        f"--engine vllm --engine-version {release} --heads 128 --tp 8 --dcp 8 "
        "--max-num-batched-tokens 16384"
    )
    sparse = site(answer, "sparse_mla")
    assert code == 1
    assert (sparse["kernel_heads"], sparse["workspace_bytes"]) == (128, 394 * MIB)
    assert sparse["overflow_threshold_batch"] == answer["overflow_threshold_batch"] == rows


@pytest.mark.parametrize("release", FIXED)
def test_sparse_mla_is_computed_since_0_30(release: str) -> None:
    code, answer = plan(
        f"--engine vllm --engine-version {release} --heads 128 --tp 8 --dcp 8 "
        "--max-num-batched-tokens 16384"
    )
    assert (code, answer["env"], answer["extra_bytes_per_gpu"]) == (0, {}, 0)
    # 394 MiB + 8 * 128 * 16,384 * 256 + 1 MiB
    assert site(answer, "sparse_mla")["workspace_bytes"] == 4_709_154_816


@pytest.mark.parametrize(
    ("release", "rows"),
    [*((r, 988) for r in B), ("0.27.1", 1020), ("0.28.0", 1020), ("0.29.0", None)]
    + [(r, None) for r in FIXED],
)
def test_dense_mla(release: str, rows: int | None) -> None:
    arguments = (
        f"--engine vllm --engine-version {release} --attention mla --heads 128 --tp 8 --dcp 8"
    )
    code, answer = plan(arguments)
    decode = site(answer, "mla_decode")
    assert decode["overflow_threshold_batch"] == rows
    assert decode["workspace_bytes"] == 256 * MIB
    # max_num_seqs is 1,024 by default; the size is a constant: no variable helps
    assert (code, answer["env"]) == ((0, {}) if rows is None else (1, {}))


@pytest.mark.parametrize(
    ("release", "wide", "narrow"),
    [*((r, 48, 192) for r in B), *((r, 49, 196) for r in (*C, *FIXED))],
)
def test_ragged_with_lse(release: str, wide: int, narrow: int) -> None:
    common = f"--engine vllm --engine-version {release} --attention mla --heads 128"
    at_8192 = f"{common} --tp 1 --max-num-batched-tokens 8192"
    assert threshold(at_8192, "mla_prefill_ragged") == wide
    at_16384 = f"{common} --tp 8 --max-num-batched-tokens 16384"
    assert threshold(at_16384, "mla_prefill_ragged") == narrow


@pytest.mark.parametrize(
    ("release", "rows"), [*((r, 1540) for r in B), *((r, 1572) for r in (*C, *FIXED))]
)
def test_dense_gqa(release: str, rows: int) -> None:
    arguments = f"--engine vllm --engine-version {release} --attention gqa --heads 128 --tp 8"
    assert threshold(f"{arguments} --dcp 8", "dense_decode") == rows
    assert threshold(arguments, "dense_decode") is None


def test_sglang_decode_under_dcp() -> None:
    arguments = "--engine sglang --engine-version 0.5.23 --heads 128 --tp 8 --dcp 8"
    assert threshold(arguments, "trtllm_mla_decode") == 596


def test_sglang_ragged_prefix_chunks() -> None:
    arguments = "--engine sglang --engine-version 0.5.23 --heads 128 --max-num-batched-tokens 8192"
    assert threshold(arguments, "trtllm_mla_prefix") == 18


REPORTED = "--engine vllm --heads 64 --tp 8 --dcp 8 --max-num-batched-tokens 16384"


def test_the_reported_deployment() -> None:
    code, answer = plan(f"{REPORTED} --engine-version 0.26.0")
    assert code == 1
    assert answer["env"] == {"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "2561671168"}
    assert any("read at up to five places" in note for note in answer["notes"])
    assert answer["overflow_threshold_batch"] == 3080
    assert answer["recommended_workspace_bytes"] == 2_561_671_168
    live = [each for each in answer["sites"] if each["live"]]
    total = sum(each["extra_bytes_per_gpu"] for each in live)
    # 2,561,671,168 - 413,138,944, for the one site that is certain to be live
    assert total == answer["extra_bytes_per_gpu"] == 2_148_532_224


def test_the_reported_deployment_on_the_newest_release() -> None:
    code, answer = plan(f"{REPORTED} --engine-version 0.33.0")
    assert (code, answer["env"], answer["extra_bytes_per_gpu"]) == (0, {}, 0)


def test_an_explicit_smaller_value_is_better_unset() -> None:
    code, answer = plan(f"{REPORTED} --engine-version 0.33.0 --workspace-bytes 394MiB")
    assert (code, answer["env"], answer["overflow_threshold_batch"]) == (1, {}, 3144)
    (note,) = [note for note in answer["notes"] if "unset" in note]
    assert note.startswith("unset VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE (413,138,944)")
    assert answer["extra_bytes_per_gpu"] == 2_148_532_224
