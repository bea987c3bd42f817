"""The command line as a process: answers, exit codes, one line for every bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REFERENCE = (
    "plan --engine none --flashinfer 0.6.14 --sm-count 148 --heads 64 --tp 8 --dcp 8 "
    "--max-num-batched-tokens 16384 --workspace-bytes 394MiB"
)
WITH_ENGINE = "plan --engine-version 0.26.0 --heads 64 -- vllm serve some/model -tp 8 -dcp 8"


def ws_guard(arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ws_guard", *arguments.split()]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_reference_plan_as_json() -> None:
    done = ws_guard(f"{REFERENCE} --json")
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert done.stderr == ""
    assert answer["kernel_heads"] == 64
    assert answer["slabs"] == {"counter": 8388608, "softmax_stats": 2148532224, "scratch": 0}
    assert answer["need_bytes"] == 2156920832
    assert answer["margin_bytes"] == -1743781888
    assert answer["overflow_threshold_batch"] == 3080
    assert answer["margin_batch"] == -13304
    assert answer["recommended_workspace_bytes"] == 2561671168
    assert (answer["env"], answer["sites"]) == ({}, [])


def test_the_reference_plan_for_people() -> None:
    done = ws_guard(REFERENCE)
    assert done.returncode == 1
    assert done.stdout.startswith("DOES NOT FIT (overflow)")
    for text in ("3,080 rows", "2,561,671,168 B", "-1,743,781,888 B", "layout                B"):
        assert text in done.stdout


def test_without_dcp_it_fits() -> None:
    done = ws_guard(REFERENCE.replace("--dcp 8", "--dcp 1") + " --json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["recommended_workspace_bytes"] == 413138944


def test_gpu_by_name() -> None:
    by_name = REFERENCE.replace("--sm-count 148", "--gpu B200")
    assert json.loads(ws_guard(f"{by_name} --json").stdout) == json.loads(
        ws_guard(f"{REFERENCE} --json").stdout
    )


def test_sweep(tmp_path: Path) -> None:
    image = tmp_path / "sweep.png"
    done = ws_guard(f"{REFERENCE} --sweep tokens=3080,3081 --json --plot {image}")
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert answer["parameter"] == "tokens"
    assert [(plan["value"], plan["fits"]) for plan in answer["plans"]] == [
        (3080, True),
        (3081, False),
    ]
    assert image.read_bytes().startswith(b"\x89PNG")
    text = ws_guard(f"{REFERENCE} --sweep heads=8,16 --max-num-batched-tokens 512")
    assert text.returncode == 0
    assert len(text.stdout.splitlines()) == 3


def test_a_sweep_has_the_notes_of_its_plans() -> None:
    done = ws_guard("plan --heads 64 --max-num-batched-tokens 1 --sweep tokens=1,70000,80000")
    *_, installed, limit = done.stdout.splitlines()
    assert installed == "note: judged by the source of the installed FlashInfer 0.6.14"
    about = (
        "note (tokens 70,000; 80,000): a batch above 65,535 cannot launch whatever the workspace"
    )
    assert limit == f"{about}: lower --max-num-batched-tokens to 65,535"


def test_the_api_names_arguments_and_the_command_line_flags(tmp_path: Path) -> None:
    """Where FlashInfer has no launcher, and its release is assumed."""
    package = tmp_path / "flashinfer" / "__init__.py"
    package.parent.mkdir()
    package.touch()
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    step = "plan --heads 64 --max-num-batched-tokens 1"
    asked = {
        "flags": ["-m", "ws_guard", *step.split()],
        "flags, in a sweep": ["-m", "ws_guard", *step.split(), "--sweep", "heads=8,16"],
        "arguments": ["-c", "import ws_guard as w; print(w.plan(heads=64, max_num_seqs=1).notes)"],
    }
    told = {
        name: subprocess.run(
            [sys.executable, *command], env=environ, capture_output=True, text=True, check=True
        ).stdout
        for name, command in asked.items()
    }
    assumed = "judged as FlashInfer 0.7.4, the newest known; pass"
    for name, text in told.items():
        word = "flashinfer" if name == "arguments" else "--flashinfer"
        assert text.count(f"{assumed} {word}") == 1


def test_verify() -> None:
    done = ws_guard("verify --json --strict")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert (answer["verdict"], answer["layout"], answer["release"]) == ("verified", "B", "0.6.14")
    assert "verified" in ws_guard("verify").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "Missing command"),
        ("nope", "No such command 'nope'"),
        ("plan", "--heads is missing"),
        ("plan --heads x", "Invalid value for '--heads'"),
        ("plan --heads 64", "--max-num-batched-tokens is missing"),
        ("plan --bogus", "No such option"),
        (
            f"{REFERENCE} --workspace-bytes 12parsecs",
            "--workspace-bytes: '12parsecs' is not a size",
        ),
        (f"{REFERENCE} --workspace-bytes 0", "--workspace-bytes must be between 1"),
        (f"{REFERENCE} --dcp 3", "dcp 3 must divide tp x pcp = 8; change --dcp or --tp"),
        (f"{REFERENCE} --gpu b200", "--gpu and --sm-count exclude each other"),
        ("plan --heads 1 --max-num-batched-tokens 1 --gpu tpu", "gpu must be one of b200"),
        (f"{REFERENCE} --flashinfer 0.1.6", "0.1.6 is older than 0.3.0"),
        (f"{REFERENCE} --model glm", "--model needs an engine: pass --engine vllm or sglang"),
        (f"{REFERENCE} --engine-version 0.33.0", "--engine-version needs an engine"),
        (f"{REFERENCE} --attention mla", "--attention needs an engine"),
        ("plan --engine triton --heads 64", "--engine must be none, vllm or sglang"),
        ("plan --engine none -- vllm serve glm", "leave --engine out"),
        (f"{REFERENCE} --plot x.png", "--plot draws a sweep: pass --sweep"),
        (f"{REFERENCE} --sweep colour=1", "--sweep takes tokens, dcp, tp, heads, q-len"),
        (f"{REFERENCE} --sweep tokens=1,many", "--sweep tokens needs whole numbers"),
        (f"{REFERENCE} --sweep tokens=1 --plot /no/such/dir.png", "name a writable .png"),
        (f"{REFERENCE} --sweep tokens=1 --plot x.docx", "name a writable .png"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: str, words: str) -> None:
    done = ws_guard(arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_plan_and_verify_import_neither_torch_nor_the_exporter() -> None:
    script = (
        "import sys; from ws_guard.cli import run; "
        f"run({REFERENCE.split()!r}); run(['verify']); run({WITH_ENGINE.split()!r}); "
        "heavy = {'torch', 'flashinfer', 'fastapi', 'prometheus_client', 'matplotlib', 'yaml', "
        "'vllm', 'sglang'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_that_cannot_be_written_is_no_answer() -> None:
    command = f"{sys.executable} -m ws_guard {REFERENCE} --dcp 1"
    full = subprocess.run(
        ["sh", "-c", f"{command} > /dev/full"], capture_output=True, text=True, check=False
    )
    assert (full.returncode, full.stderr.count("\n")) == (2, 1)
    assert "the answer cannot be written: No space left on device" in full.stderr
    gone = subprocess.run(
        ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # A reader that leaves before the answer: by SIGPIPE, or in time to take it.
    assert gone.returncode in (0, 128 + 13)
    assert gone.stderr == ""


def test_a_bad_setting_is_named_by_every_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ws_guard", *REFERENCE.split()],
        env={**os.environ, "WS_GUARD_STRICT": "maybe"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "WS_GUARD_STRICT='maybe' is not allowed: use 1 or 0" in done.stderr


def test_version() -> None:
    assert ws_guard("--version").stdout.startswith("ws-guard 0.")


def test_without_the_extra_the_command_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ImportError('not here')")
    done = subprocess.run(
        [sys.executable, "-m", "ws_guard", "plan"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs pip install 'ws-guard[exporter]'" in done.stderr
