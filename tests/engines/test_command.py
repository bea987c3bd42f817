"""A launch command taken apart: environment, engine, words."""

from __future__ import annotations

import pytest

from ws_guard.engines.command import parse_command
from ws_guard.sizing import InputError


@pytest.mark.parametrize(
    ("line", "engine", "environ", "words", "positional"),
    [
        ("vllm serve m -tp 8", "vllm", {}, ["m", "-tp", "8"], True),
        ("/opt/venv/bin/vllm serve m", "vllm", {}, ["m"], True),
        ("A=1 env -i B=2=3 nice -n 5 vllm serve m", "vllm", {"A": "1", "B": "2=3"}, ["m"], True),
        ("docker run -e A=1 image vllm serve m", "vllm", {"A": "1"}, ["m"], True),
        (
            "docker run --entrypoint vllm -e A=1 i serve m -tp 8",
            "vllm",
            {"A": "1"},
            ["m", "-tp", "8"],
            True,
        ),
        ("docker run --entrypoint=/bin/sglang i serve m", "sglang", {}, ["m"], True),
        ("python -m vllm.entrypoints.openai.api_server", "vllm", {}, [], False),
        ("python3.12 -u -m vllm.entrypoints.cli.main serve m", "vllm", {}, ["m"], True),
        ("torchrun -m sglang.launch_server --tp 8", "sglang", {}, ["--tp", "8"], False),
        ("sglang serve m", "sglang", {}, ["m"], True),
    ],
)
def test_commands(
    line: str, engine: str, environ: dict[str, str], words: list[str], positional: bool
) -> None:
    assert parse_command(line.split()) == (engine, environ, words, positional, None)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("docker run --rm vllm/vllm-openai:v0.26.0 vllm serve m", "0.26.0"),
        ("docker run ghcr.io/x/vllm/vllm-openai:v0.26.0@sha256:01ab vllm serve m", "0.26.0"),
        ("docker run lmsysorg/sglang:v0.5.23-cu130 sglang serve m", "0.5.23"),
        ("docker run lmsysorg/sglang:v0.5.22.post1-cu129 sglang serve m", "0.5.22.post1"),
        ("docker run vllm/vllm-openai:v0.34.0rc1 vllm serve m", "0.34.0rc1"),
        ("docker run vllm/vllm-openai:nightly vllm serve m", None),
        # Not this engine's, and nobody's that is known
        ("docker run lmsysorg/sglang:v0.5.23 vllm serve m", None),
        ("docker run my/vllm:v0.26.0 vllm serve m", None),
        # Its entry point starts the engine
        ("docker run --gpus all vllm/vllm-openai:v0.26.0 --model m -tp 8", "0.26.0"),
    ],
)
def test_the_release_of_an_image(line: str, version: str | None) -> None:
    assert parse_command(line.split()).image_version == version


def test_a_command_in_one_word() -> None:
    assert parse_command(["A='1 2' vllm serve m"]).environ == {"A": "1 2"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no engine in the launch command"),
        (["vllm", "bench"], "it needs 'vllm serve'"),
        (["python", "-m", "http.server"], "no engine in the launch command"),
        (["python", "-m"], "no engine in the launch command"),
        (["vllm serve 'm"], "cannot be read"),
        (["bash", "run/launch.sh"], r"; run/launch.sh is not read: write the command that it"),
        (["--model", "m", "-tp", "8"], "arguments stand behind the engine, as plain words: vllm"),
        (['["--model", "m"]'], "arguments stand behind the engine, as plain words: vllm"),
        (["docker", "run", "--entrypoint"], "write what the container starts"),
        (["docker", "run", "--entrypoint", "bash", "i", "serve"], "write what the container"),
    ],
)
def test_no_engine(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_command(words)
