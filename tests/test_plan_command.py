"""`plan` with an engine as a process: text for people, one line for every bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_attention_heads": 64,
    "num_hidden_layers": 78,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_head_dim": 128,
}
FP8 = "-tp 8 -dcp 8 --max-num-batched-tokens 16384 --kv-cache-dtype fp8"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def ws_guard(arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ws_guard", "plan", *arguments.split()]
    environ = {**os.environ, "HF_HUB_CACHE": "/nowhere", **environ}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def test_text_for_people(model: Path) -> None:
    done = ws_guard(f"--engine-version 0.26.0 -- vllm serve {model} {FP8} --port 8000")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("DOES NOT FIT (overflow): sparse_mla\n")
    for text in (
        "set: VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=2561671168",
        "costs: 2,148,532,224 B (2.0 GiB) more per GPU, 311,248 tokens less",
        "ignored, without a bearing on the workspace: --port",
        "not live: mla_prefill_ragged (only with TRTLLM_RAGGED)",
        "3,080",
    ):
        assert text in done.stdout
    assert "dense_decode" not in done.stdout


def test_what_no_variable_mends_is_set_by_flags() -> None:
    done = ws_guard("--heads 128 -- python -m sglang.launch_server --model-path m --tp 8")
    assert done.returncode == 1
    # (150 MiB - 1 MiB) / (8 * 16 heads * 16,384 tokens) requests in a prefill step.
    assert "\n  set: --prefill-max-requests 74\n" in done.stdout


def test_a_variable_that_is_better_taken_away(model: Path) -> None:
    variable = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
    done = ws_guard(f"--engine-version 0.33.0 -- {variable}=413138944 vllm serve {model} {FP8}")
    assert done.returncode == 1
    assert f"\n  unset: {variable}\n" in done.stdout
    assert "  set: " not in done.stdout


def test_fits(model: Path) -> None:
    done = ws_guard(f"--engine-version 0.33.0 -- vllm serve {model} {FP8}")
    assert done.returncode == 0
    assert done.stdout.startswith("FITS: no step of this launch can overflow a workspace\n")


def test_the_release_of_the_image_is_judged(model: Path) -> None:
    docker = "docker run --rm --gpus all vllm/vllm-openai"
    # As in test_text_for_people: 0.26.0 does not size the workspace, 0.33.0 does
    done = ws_guard(f"-- {docker}:v0.26.0 vllm serve {model} {FP8}")
    assert done.returncode == 1
    assert done.stdout.startswith("DOES NOT FIT (overflow): sparse_mla\n")
    assert "judged as vllm 0.26.0, by the image vllm/vllm-openai:v0.26.0" in done.stdout
    done = ws_guard(f"--engine-version 0.33.0 -- {docker}:v0.26.0 vllm serve {model} {FP8}")
    assert done.returncode == 0
    assert "--engine-version 0.33.0 wins over the image vllm/vllm-openai:v0.26.0" in done.stdout
    done = ws_guard(f"-- {docker}:v0.8.5 vllm serve {model} {FP8}")
    assert done.returncode == 2
    assert "older than 0.25.0" in done.stderr


def test_a_guessed_release_is_told_in_the_headline(model: Path) -> None:
    guess = "as vllm 0.33.0, the newest known: --engine-version was not given"
    image = "docker run vllm/vllm-openai:latest"
    done = ws_guard(f"-- {image} vllm serve {model} {FP8}")
    assert done.stdout.startswith(f"FITS ({guess}): no step of this launch can overflow")
    assert "the image vllm/vllm-openai:latest does not tell its release" in done.stdout
    variable = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=413138944"
    done = ws_guard(f"-- {variable} vllm serve {model} {FP8}")
    assert done.stdout.startswith(f"DOES NOT FIT (overflow; {guess}): sparse_mla\n")


def test_own_flags_win_over_the_command(model: Path) -> None:
    done = ws_guard(
        f"--json --engine-version 0.33.0 --tp 4 --dcp 2 --max-num-seqs 8 --gpu b300 "
        f"--workspace-bytes 1GiB --flashinfer 0.6.14 -- vllm serve {model} {FP8}"
    )
    answer = json.loads(done.stdout)
    launch = answer["launch"]
    assert (launch["tp"], launch["dcp"], launch["max_num_seqs"]) == (4, 2, 8)
    assert (launch["workspace_bytes"], answer["layout"]) == (1 << 30, "B")
    # FP8 says -tp 8
    assert "--tp 4 of ws-guard plan wins over 8 of the launch command" in answer["notes"]
    assert not any(note.startswith("--max-num-seqs 8 of") for note in answer["notes"])


def test_an_exported_variable_reaches_the_launch(model: Path) -> None:
    variable = {"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "413138944"}
    done = ws_guard(f"--json --engine-version 0.33.0 -- vllm serve {model} {FP8}", **variable)
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["launch"]["workspace_bytes"] == 413_138_944
    assert (
        f"{next(iter(variable))} is 413,138,944, as set here or in the command" in answer["notes"]
    )


def test_heads_where_the_model_cannot_be_read() -> None:
    done = ws_guard("--engine-version 0.26.0 --heads 64 -- vllm serve no/such -tp 8 -dcp 8")
    assert done.returncode == 1
    assert "neither a path nor in the hub cache /nowhere" in done.stdout
    assert "judged by --heads" in done.stdout


def test_nothing_live(model: Path) -> None:
    done = ws_guard(
        f"--engine-version 0.26.0 -- vllm serve {model} --attention-backend FLASHMLA_SPARSE"
    )
    assert done.returncode == 0
    assert "uses no trtllm-gen workspace" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--engine vllm", "no model: pass --model, --heads, or a launch command"),
        ("--engine vllm --model no/such", "pass --model DIRECTORY (or a config.json), or --heads"),
        ("--engine vllm --heads 64 --attention mha", "--attention must be one of sparse_mla"),
        ("--engine vllm --heads 64 --engine-version x", "--engine-version must be a release"),
        ("--engine vllm --heads 64 --engine-version 0.8.5", "older than 0.25.0"),
        (
            "--heads 64 --engine-version 0.26.0 -- sglang serve m",
            "--engine-version 0.26.0 looks like a release of vllm",
        ),
        ("--engine vllm --heads 64 --engine-version 0.5.23", "looks like a release of sglang"),
        ("--heads 64 --attention mla", "--attention needs an engine: pass --engine"),
        ("--engine vllm --heads 64 --tp 8 --dcp 3", "--dcp 3 must divide tp x pcp = 8"),
        ("--engine vllm --heads 0", "--heads must be between 1"),
        ("--engine vllm --heads 64 --max-q-len 0", "--max-q-len must be between 1"),
        ("--engine vllm --heads 64 --sweep tokens=1", "--sweep and --plot need --engine none"),
        ("--engine sglang --heads 64 -- vllm serve m", "the launch command starts vllm"),
        ("--heads 64 -- vllm bench", "no engine in the launch command"),
        ("--heads 64 -- vllm serve m -tp x", "-tp of the launch command: 'x' cannot be read"),
        ("-- vllm serve", "no model: pass --model, --heads"),
        ("-- vllm serve $MODEL -tp 8", "model $MODEL: the shell did not fill in $MODEL: write its"),
        ("-- vllm serve no/such", "model no/such is neither a path nor in the hub cache"),
        ("-- vllm serve m --config /no/such.yaml", "--config /no/such.yaml of the launch command"),
        (
            "-- VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=1GiB vllm serve no/such",
            "model no/such is neither",
        ),
        (
            "--heads 64 -- VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=1GiB vllm serve no/such",
            "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=1GiB is not a whole number of bytes",
        ),
        (
            "--heads 64 -- vllm serve m --speculative-config.num_speculative_tokens many",
            "num_speculative_tokens must be a whole number",
        ),
    ],
)
def test_bad_input_is_one_line(arguments: str, words: str) -> None:
    done = ws_guard(arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_broken_yaml_is_one_line(tmp_path: Path) -> None:
    for text in ("a: [1", "- a"):
        (tmp_path / "c.yaml").write_text(text)
        done = ws_guard(f"--heads 64 -- vllm serve m --config {tmp_path}/c.yaml")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
