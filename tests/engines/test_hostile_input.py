"""Configs and commands of the kind that people really have, and that once gave a wrong answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ws_guard.engines import reader
from ws_guard.engines.model import model_of
from ws_guard.sizing import InputError

if TYPE_CHECKING:
    from pathlib import Path

SPARSE = {"num_attention_heads": 128, "kv_lora_rank": 512, "index_topk": 2048,
          "qk_rope_head_dim": 64, "num_hidden_layers": 61}  # fmt: skip


def read(command: str, **environ: str) -> Any:
    return reader.read_launch(reader.Asked(engine_version="0.26.0"), command.split(), environ)


def test_nested_config_wins_over_heads_above_it() -> None:
    model = model_of("both", {"num_attention_heads": 64, "text_config": SPARSE})
    assert (model.kind, model.heads) == ("sparse_mla", 128)


def test_key_above_a_nested_part_that_is_silent_holds() -> None:
    nested = {key: value for key, value in SPARSE.items() if key != "num_attention_heads"}
    model = model_of("above", {"num_attention_heads": 96, "text_config": nested})
    assert (model.kind, model.heads) == ("sparse_mla", 96)


def test_model_behind_the_value_of_an_unknown_flag(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SPARSE))
    launch, _ = read(f"vllm serve --host 0.0.0.0 --port 8000 {tmp_path} -tp 8 -dcp 8")
    assert (launch.model.heads, launch.tp, launch.dcp) == (128, 8, 8)


def test_gqa_without_dimensions_tells_no_lost_tokens(tmp_path: Path) -> None:
    config = {"num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = f"plan --json --engine-version 0.26.0 -- vllm serve {tmp_path} -tp 8 -dcp 8"
    done = subprocess.run(
        [sys.executable, "-m", "ws_guard", *command.split()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # (394 - 8 - 1) MiB / (8 * 64 * 256) = 3,080 rows of the 1,024.
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["kv_tokens_lost"] is None


@pytest.mark.parametrize("flag", ["--env=", "-e", "-e "])
def test_environment_of_a_container(flag: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SPARSE))
    variable = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=1048576"
    launch, _ = read(f"docker run {flag}{variable} image vllm serve {tmp_path}")
    assert launch.workspace_bytes == 1_048_576


@pytest.mark.parametrize(
    ("name", "environ"),
    [("x" * 5_000, {}), ("~nobody_of_that_name/y", {"HOME": "/nonexistent"})],
)
def test_model_that_is_no_path_is_one_line(name: str, environ: dict[str, str]) -> None:
    with pytest.raises(InputError, match="model"):
        read(f"vllm serve {name}", **environ)


def test_config_that_is_nested_without_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="cannot be read as a model's config"):
        read(f"vllm serve {tmp_path}")


def test_closed_standard_output_keeps_the_answer() -> None:
    command = f"{sys.executable} -m ws_guard plan --heads 8 --max-num-batched-tokens 8 >&-"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert (done.returncode, done.stderr) == (0, "")
