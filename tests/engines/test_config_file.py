"""`--config FILE.yaml` of a launch command."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ws_guard.engines.reader import Asked, read_launch
from ws_guard.sizing import InputError

# The command line wins over the file
OVERRIDDEN = """
tensor-parallel-size: 8
decode-context-parallel-size: 8
max-num-batched-tokens: 4096
enable-expert-parallel: true
"""
# The model stands in the file; mappings, lists and human numbers
COMPLETE = """
model: zai/glm
tensor_parallel_size: 4
max-num-batched-tokens: 16k
hf-overrides:
  num_attention_heads: 32
served-model-name: [a, b]
"""
SGLANG = """
model-path: zai/glm
tp-size: 8
dcp-size: 8
chunked-prefill-size: 2048
"""


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (OVERRIDDEN, "vllm serve zai/glm -dcp 4 --config {path}", (64, 8, 4, 4_096)),
        (COMPLETE, "vllm serve --config={path}", (32, 4, 1, 16_000)),
        (SGLANG, "python -m sglang.launch_server --config {path}", (64, 8, 8, 2_048)),
    ],
)
def test_config_files(
    tmp_path: Path, hub: Path, text: str, line: str, expected: tuple[int, int, int, int]
) -> None:
    (tmp_path / "serve.yaml").write_text(text)
    words = shlex.split(line.format(path=tmp_path / "serve.yaml"))
    launch, _ = read_launch(Asked(), words, {"HF_HUB_CACHE": str(hub)})
    read = (launch.model.heads, launch.tp, launch.dcp, launch.max_num_batched_tokens)
    assert read == expected


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/", "--config / of the launch command: Is a directory: pass a YAML file"),
        ("$CONFIG", "the shell did not fill in $CONFIG: write its value"),
    ],
)
def test_what_cannot_be_read(path: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_launch(Asked(heads=64), ["vllm", "serve", "m", "--config", path], {})
    assert said in str(refused.value)
