"""Flags as the engines' parsers read them."""

from __future__ import annotations

from typing import Any

import pytest

from ws_guard.engines.flags import human_number, human_number_or_auto, read_flags
from ws_guard.engines.known_flags import known_flags
from ws_guard.engines.vllm_command import FLAGS
from ws_guard.sizing import InputError

KNOWN = known_flags("vllm")


@pytest.mark.parametrize(
    ("text", "number"),
    [("16384", 16_384), ("16k", 16_000), ("16K", 16_384), ("25.6k", 25_600), ("2M", 2 << 20)],
)
def test_human_numbers(text: str, number: int) -> None:
    assert human_number(text) == number


@pytest.mark.parametrize("text", ["1.5K", "16 k", "many", "", "0x10"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        human_number(text)


def test_auto_is_left_to_the_engine() -> None:
    assert [human_number_or_auto(text) for text in ("auto", "-1", "4k")] == [0, 0, 4_000]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("-tp 8", {"tp": 8}),
        ("-tp=8 --tensor_parallel_size 4", {"tp": 4}),
        ("--tensor-parallel 8", {"tp": 8}),
        ("--tens 8 -pc 2", {"tp": 8, "pcp": 2}),
        ("-ep --disable-expert-parallel", {"expert_parallel": False}),
        ("--disable-chunked-prefill", {"chunked_prefill": False}),
        ("--spec-tokens 3", {"drafted": 3}),
        ("-ep --no-enable-chunked-prefill", {"expert_parallel": True, "chunked_prefill": False}),
        ("--hf-overrides.a.b 1k --hf-overrides.a.c x", {"overrides": {"a": {"b": 1000, "c": "x"}}}),
        ("""-sc {"method":"mtp"}""", {"speculative_config": {"method": "mtp"}}),
        ("--max-model-len -1", {"max_len": 0}),
    ],
)
def test_values(line: str, values: dict[str, Any]) -> None:
    assert read_flags(line.split(), FLAGS, KNOWN).values == values


def test_what_has_no_bearing_is_named_and_takes_its_values_along() -> None:
    words = ["--port", "8000", "--lora-modules", "a", "b", "--enforce-eager", "some/model"]
    read = read_flags([*words, "--host=::"], FLAGS, KNOWN)
    assert read.ignored == ["--port", "--lora-modules", "--enforce-eager", "--host"]
    assert read.positional == ["some/model"]


def test_a_beginning_of_several_flags_is_none_of_them() -> None:
    # --max-num-seqs, --max-num-batched-tokens and others
    read = read_flags(["--max-num", "8"], FLAGS, KNOWN)
    assert (read.values, read.unknown) == ({}, ["--max-num"])


def test_a_flag_takes_as_many_words_as_it_has_values() -> None:
    # 1, 0, and one or more values; -O3 and -n2 hold theirs
    line = "--host 0.0.0.0 one --enforce-eager two --served-model-name a b -O3 three -n2 four"
    read = read_flags(line.split(), FLAGS, KNOWN)
    assert (read.positional, read.behind) == (["one", "two", "three", "four"], "b")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-tp", "-tp of the launch command has no value"),
        ("-tp -dcp 8", "-tp of the launch command has no value"),
        ("-tp eight", "-tp of .*: 'eight' cannot be read: write a whole number$"),
        ("-tp 8.0", "'8.0' cannot be read: write a whole number$"),
        ("--max-num-batched-tokens 16,384", "'16,384' cannot be read: write a whole number$"),
        ("--tensor-parallel-size=", "'' cannot be read: write a whole number$"),
        ("-tp $TP", r"the shell did not fill in \$TP: write its value$"),
        ("-tp $(TP)", r"the shell did not fill in \$\(TP\): write its value$"),
        ("--max-num-seqs ${N:-8}", r"the shell did not fill in \$\{N:-8\}: write its value$"),
        ("--hf-overrides {$X", "'{\\$X' cannot be read: write a JSON object$"),
        ("--max-num-seqs 1k", "'1k' cannot be read"),
        ("--hf-overrides {a:1}", "cannot be read"),
    ],
)
def test_bad_values_are_named(line: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_flags(line.split(), FLAGS, KNOWN)
