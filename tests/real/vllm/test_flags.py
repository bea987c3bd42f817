"""The flags that are known against the engines' own parsers: vLLM 0.33.0 and 0.26.0, SGLang 0.5.23.

A launch line that the engine takes must not be refused, and one with a misspelt size must be.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ws_guard.engines import sglang_command, vllm_command
from ws_guard.engines.flags import Flag
from ws_guard.engines.known_flags import known_flags
from ws_guard.engines.reader import Asked, read_launch
from ws_guard.sizing import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Ran

pytestmark = pytest.mark.engine

#: Misspelt, of another engine, or the beginning of several; and what is said of each.
VLLM_REFUSES = {
    "--max-num-batched-tokenz 16384": "--max-num-batched-tokens",
    "--max-batch-tokens 16384": "--max-num-batched-tokens",
    "--max-num-sequences 8": "--max-num-seqs",
    "--max-num 8": "--max-num-batched-tokens or --max-num-seqs",
    "--max-seq-len 4096": "--max-model-len",
    "--tensor-paralell-size 8": "--tensor-parallel-size",
    "--tp 8": "--tensor-parallel-size",
    "--tp-size 8": "--tensor-parallel-size",
    "-tp8": "-tp 8",
    "-TP 8": "-tp",
    "--decode-cp 8": "--decode-context-parallel-size",
    "--dcp 8": "--decode-context-parallel-size",
    "--pp 2": "--pipeline-parallel-size",
    "--chunked-prefill-size 8192": "--max-num-batched-tokens",
    "--kv-cache-type fp8": "--kv-cache-dtype",
    "--heads 64": "--heads of ws-guard plan, before the command",
}
SGLANG_REFUSES = {
    "-tp 8": "--tp-size",
    "--TP 8": "--tp",
    "--tp-sise 8": "--tp-size",
    "--tensor-paralel-size 8": "--tensor-parallel-size",
    "--max-num-batched-tokens 8192": "--chunked-prefill-size",
    "--chunk-prefill-size 8192": "--chunked-prefill-size",
    "--max-num-seqs 8": "--max-running-requests",
    "--max-model-len 4096": "--context-length",
    "--workspace-bytes 1": "--workspace-bytes of ws-guard plan, before the command",
}
#: Written out, begun, glued, underscored: what argparse takes is taken.
VLLM_TAKES = [
    "-tp 8 -dcp=8 --max_num_batched_tokens 16k",
    "--tens 8 --dec 8 -pc 2 --max-num-b 8192",
    "-tp 2 -O3 -n2 --max-mo 4k --all2 naive",
    "--enable-eplb --max-num-scheduled-tokens 100 --dcp-comm ag_rs",
]
SGLANG_TAKES = ["--tp 8 --dp 8 --dcp-s 8", "--chunked 8192 --mem-f 0.8 --max-run 8"]


class Engine(NamedTuple):
    """An engine with what its parser needs to be given, and what it is asked."""

    name: str
    version: str
    flags: tuple[Flag, ...]
    model: str
    directory: str | None
    refuses: dict[str, str]
    takes: list[str]


ENGINES = [
    Engine("vllm", "0.33.0", vllm_command.FLAGS, "", None, VLLM_REFUSES, VLLM_TAKES),
    Engine("vllm", "0.26.0", vllm_command.FLAGS, "", "vllm-0.26.0", VLLM_REFUSES, VLLM_TAKES),
    Engine(
        "sglang", "0.5.23", sglang_command.FLAGS, "--model-path some/model ", "sglang-0.5.23",
        SGLANG_REFUSES, SGLANG_TAKES,
    ),
]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES, ids=lambda one: f"{one.name}-{one.version}")
def test_the_parser_and_the_reader_agree(
    engine: Engine, environment: Path, run: Callable[..., Ran]
) -> None:
    lines = [engine.model + line for line in [*engine.takes, *engine.refuses]]
    directory = [str(environment / engine.directory)] if engine.directory else []
    words = json.dumps([shlex.split(line) for line in lines])
    told = run("parser.py", engine.name, words, *directory).told
    assert told["taken"] == [True] * len(engine.takes) + [False] * len(engine.refuses)
    known = known_flags(engine.name).values
    assert told["flags"].items() <= known.items()
    # SGLang's beginnings: of --dcp and --pp there are several, but one that bears on sizes
    short = {"--tp", "--dp", "--dcp", "--pp"} if engine.name == "sglang" else set()
    assert {s for flag in engine.flags for s in flag.spellings} - set(known) == short
    for line in engine.takes:
        assert not any("no flag of" in note for note in notes_on(engine, line))
    for line, meant in engine.refuses.items():
        with pytest.raises(InputError) as refused:
            notes_on(engine, line)
        flag = line.split()[0]
        said = f"{flag} of the launch command is no flag of {engine.name}: did you mean {meant}?"
        assert str(refused.value) == said


def notes_on(engine: Engine, line: str) -> list[str]:
    """What is said of a launch line, `--heads` standing for the model."""
    asked = Asked(engine=engine.name, engine_version=engine.version, heads=128)
    command = {"vllm": "vllm serve some/model", "sglang": "sglang serve some/model"}[engine.name]
    return read_launch(asked, shlex.split(f"{command} {line}"), {})[1]
