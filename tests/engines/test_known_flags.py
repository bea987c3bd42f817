"""Misspelt flags of a launch command. `tests/real/vllm/test_flags.py` asks the engines' parsers."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ws_guard.engines.known_flags import known_flags
from ws_guard.engines.reader import Asked, read_launch
from ws_guard.sizing import InputError


def notes_on(line: str, version: str = "0.33.0") -> list[str]:
    asked = Asked(engine_version=version, heads=64)
    return read_launch(asked, shlex.split(f"vllm serve some/model {line}"), {})[1]


def test_a_misspelt_size_is_refused_with_the_one_that_was_meant() -> None:
    said = (
        r"--max-num-batched-tokenz of .* no flag of vllm: did you mean --max-num-batched-tokens\?"
    )
    with pytest.raises(InputError, match=said):
        notes_on("--max-num-batched-tokenz 16384")


@pytest.mark.parametrize("flag", ["-dcpp", "-pdc", "-dpc"])
def test_a_short_one_may_have_meant_several(flag: str) -> None:
    with pytest.raises(InputError, match=rf"{flag} of .* did you mean .*-dcp\b"):
        notes_on(f"-tp 8 {flag} 8")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-TP 8", r"-TP of .* did you mean -tp\?"),
        ("-TP8", r"did you mean -tp 8\?"),
        ("--Max-Num-Batched-Tokenz 8", r"did you mean --max-num-batched-tokens\?"),
        ("-tp 8 -DCP 8", r"-DCP of .* did you mean -dcp\?"),
        ("--Max-Num-Seqs 8", r"did you mean --max-num-seqs\?"),
        ("--decode-cp 8", r"did you mean --decode-context-parallel-size\?"),
        ("tp 8 dcp 8", r"tp 8 of .* has no dashes: did you mean -tp 8\?"),
        ("-tp 8 dcp=8", r"dcp=8 of .* has no dashes: did you mean -dcp 8\?"),
        ("-tp 8 max_num_seqs 8", r"did you mean --max-num-seqs 8\?"),
    ],
)
def test_capitals_shortened_ones_and_lost_dashes_are_refused(line: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        notes_on(line)


def test_capitals_of_sglang() -> None:
    command = shlex.split("sglang serve some/model --TP 8 --dcp-size 8")
    with pytest.raises(InputError, match=r"--TP of .* did you mean --tp\?"):
        read_launch(Asked(heads=128), command, {})


def test_lost_dashes_of_a_newer_release_are_told() -> None:
    told = "ignored, words that belong to no flag: tp 8"
    assert told in notes_on("tp 8", version="0.99.0")


@pytest.mark.parametrize("dash", ["\u2013", "\u2014", "\u2212"])
def test_dashes_of_a_document_are_no_flags(dash: str) -> None:
    with pytest.raises(InputError, match=f"{dash}dcp of .* begins with U[+]{ord(dash):04X}"):
        notes_on(f"-tp 8 {dash}dcp 8")


def test_words_of_no_flag_are_told() -> None:
    assert "ignored, words that belong to no flag: more words" in notes_on("-tp 8 more words")
    assert not [note for note in notes_on("-tp 8") if "belong to no flag" in note]


def test_one_without_a_bearing_is_told() -> None:
    # The engine will refuse it; it is nearer to --port than to any flag that is read
    assert "ignored, no flag of vllm that is known here: --prot" in notes_on("--prot 8000")


def test_a_newer_release_may_have_it() -> None:
    told = "ignored, no flag of vllm that is known here: --max-seqs; did you mean --max-num-seqs?"
    assert told in notes_on("--max-seqs 8", version="0.99.0")


@pytest.mark.parametrize("key", ["max-num-batched-tokenz", "tp"])
def test_a_misspelt_key_of_a_config_file(key: str, tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text(f"{key}: 8\n")
    with pytest.raises(InputError, match=f"--{key} of .* did you mean"):
        notes_on(f"--config {tmp_path}/serve.yaml")


def test_false_in_a_config_file_is_no_misspelling(tmp_path: Path) -> None:
    # SGLang has no --no-enable-dp-attention: its reader of the file leaves a false out
    (tmp_path / "serve.yaml").write_text("enable-dp-attention: false\n")
    command = ["sglang", "serve", "some/model", "--config", str(tmp_path / "serve.yaml")]
    launch, _ = read_launch(Asked(heads=128), command, {})
    assert launch.attention_dp == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_known_flag_has_a_number_of_values(engine: str) -> None:
    values = known_flags(engine).values
    assert set(values.values()) <= {"0", "1", "?", "*", "+"}
    assert values["--trust-remote-code"] == "0"
