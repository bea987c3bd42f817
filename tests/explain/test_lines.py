"""Lines as they come: wrapped, prefixed, cut into parts, whoever wrote between them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from messages import CRASH, FLAGS, STATS

from ws_guard.explain.lines import unwrap, whole_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    Explain = Callable[..., list[Finding]]
    ExplainOne = Callable[..., Finding]
    Wrap = Callable[[str, str, bool], str]

STAMP = "2026-07-05T12:00:01.123456789Z"
#: Without a rank of its own in every part: only the first has the worker's prefix.
PREFIXED = f"(Worker_TP3_DCP3 pid=9) ERROR 07-05 12:00:01 [x.py:1] {CRASH}"


def cri(stream: str, part: str, last: bool) -> str:
    """A line of a container runtime's file."""
    return f"{STAMP} {stream} {'F' if last else 'P'} {part}"


def docker(stream: str, part: str, last: bool) -> str:
    """A line of Docker's json-file."""
    return json.dumps({"log": part + "\n" * last, "stream": stream, "time": STAMP})


def parts(line: str, length: int) -> list[tuple[str, bool]]:
    """A line in parts of a length, and whether each is the last."""
    cuts = range(0, len(line), length)
    return [(line[cut : cut + length], cut + length >= len(line)) for cut in cuts]


def interleaved(wrap: Wrap, length: int) -> list[str]:
    """The crash on standard error; between its parts, as many of a line on standard output."""
    errors = [wrap("stderr", *part) for part in parts(PREFIXED, length)]
    banner = "INFO tokens " + "of a step " * 200
    output = [wrap("stdout", *part) for part in parts(banner, len(banner) // len(errors) + 1)]
    return [line for pair in zip(errors, output, strict=True) for line in pair]


@pytest.mark.parametrize("wrap", [cri, docker], ids=["cri", "docker"])
@pytest.mark.parametrize("first", ["num_attention_he", 'heads": 6', "78}"])
def test_config_among_lines_in_parts(wrap: Wrap, first: str, explain: Explain) -> None:
    """A model's config is JSON as well, and its numbers are what counts; `first` ends a part."""
    told = {"architectures": ["GlmMoe"], "text_config": {"num_attention_heads": 64}, "layers": 78}
    config = json.dumps(told)
    lines = [
        *(wrap("stdout", *part) for part in parts(config, config.index(first) + len(first))),
        wrap("stderr", FLAGS, True),
        *(wrap("stderr", *part) for part in parts(CRASH, 100)),
    ]
    (found,) = explain(lines)
    assert found.confidence == "exact"
    assert {each.num_qo_heads for each in found.solutions} == {64}


@pytest.mark.parametrize("wrap", [cri, docker], ids=["cri", "docker"])
@pytest.mark.parametrize("length", [37, 64, 150, 200])
def test_parts_of_two_streams_in_turn(wrap: Wrap, length: int, explain: Explain) -> None:
    (found,) = explain(interleaved(wrap, length))
    assert (found.size, found.available) == (1_611_661_312, 404_750_336)
    # Its first part alone names the worker.
    assert found.ranks == ("Worker_TP3_DCP3",)


@pytest.mark.parametrize("wrap", [cri, docker], ids=["cri", "docker"])
def test_flags_in_parts_of_two_streams(wrap: Wrap, explain: Explain) -> None:
    flags = (
        "(APIServer pid=1) INFO non-default args: {'model': 'm', 'tensor_parallel_size': 8, "
        "'decode_context_parallel_size': 8, 'max_num_batched_tokens': 16384}"
    )
    model = "model config: architectures=M num_attention_heads=64 hidden_size=6144 layers=78"
    # No part of 17 or 9 characters holds a whole name with its value.
    told = [wrap("stdout", *part) for part in parts(flags, 17)]
    config = [wrap("stderr", *part) for part in parts(model, 9)]
    assert len(told) == len(config)
    between = [line for pair in zip(told, config, strict=True) for line in pair]
    (found,) = explain([*between, wrap("stderr", CRASH, True)])
    # 64 / 8 * 8 heads in steps of 16,384 tokens: 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB.
    assert (found.confidence, found.recommended_workspace_bytes) == ("exact", 2_561_671_168)


def test_parts_of_two_pods_in_turn() -> None:
    raw = [
        f"[pod/engine-{pod}/vllm] {cri('stderr', part, last)}"
        for pair in zip(parts("a" * 30, 10), parts("b" * 30, 10), strict=True)
        for pod, (part, last) in enumerate(pair)
    ]
    told = [(each.source, each.text) for each in whole_lines(map(unwrap, raw))]
    assert told == [("engine-0", "a" * 30), ("engine-1", "b" * 30)]


def test_what_ends_in_the_middle_of_a_line_is_kept() -> None:
    raw = [cri("stderr", "begun", False), cri("stdout", "whole", True)]
    assert [each.text for each in whole_lines(map(unwrap, raw))] == ["begun", "whole"]


def test_interleaved_wrapped_messages(explain: Explain) -> None:
    """Two ranks whose messages were broken into lines, one line of each in turn."""
    parts = [
        ["Buffer overflow when allocating memory for", f"{STATS} with size {size}",
         "and alignment 16, but", f"only {404_750_336} bytes available"]
        for size in (1_611_661_312, 404_881_408)
    ]  # fmt: skip
    lines = [f"(Worker_TP{rank} pid=1) {parts[rank][step]}" for step in range(4) for rank in (0, 1)]
    found = explain(lines)
    assert {each.size: each.ranks for each in found} == {
        1_611_661_312: ("Worker_TP0",),
        404_881_408: ("Worker_TP1",),
    }


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("MESSAGE=(Worker_TP5 pid=1) ", "Worker_TP5"),
        ("[1,3]<stderr>: ", "rank 3"),
        ("[rank7]: ", "rank 7"),
        ("[default6]:", "rank 6"),
        ("[2025-11-20 16:40:55 DP1 TP3] ", "DP1 TP3"),
        ("(RayWorkerWrapper pid=206994, ip=10.1.2.3) ", "RayWorkerWrapper pid=206994"),
        ("(VLLM pid=1) (VllmWorkerProcess pid=2) ", "VllmWorkerProcess pid=2"),
        ("(VllmWorker rank=1 pid=477) ERROR 07-22 12:55:39 [x.py:618] ", "VllmWorker rank=1"),
        ("engine-1  | (EngineCore_DP0 pid=3) ", "EngineCore_DP0"),
    ],
)
def test_names_of_ranks(prefix: str, rank: str, explain_one: ExplainOne) -> None:
    found = explain_one([prefix + CRASH])
    assert [name.rpartition("/")[2] for name in found.ranks] == [rank]


def test_message_inside_json_inside_json(explain_one: ExplainOne) -> None:
    inner = json.dumps({"message": "worker failed", "exc_info": f"Traceback\n  File x\n{CRASH}"})
    outer = {"kubernetes": {"pod_name": "p-0"}, "log": f"{inner}\n", "stream": "stderr"}
    found = explain_one([json.dumps(outer)])
    assert (found.size, found.ranks) == (1_611_661_312, ("p-0",))
