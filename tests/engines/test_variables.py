"""A variable that is misspelt, or another engine's, in front of a launch command."""

from __future__ import annotations

import shlex

import pytest

from ws_guard.engines.reader import Asked, read_launch
from ws_guard.engines.variables import meant_variable
from ws_guard.sizing import InputError

VLLM = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
SGLANG = "SGLANG_FLASHINFER_WORKSPACE_SIZE"


def notes_on(
    line: str, environ: dict[str, str] | None = None, version: str | None = None
) -> list[str]:
    asked = Asked(engine_version=version, heads=64)
    return read_launch(asked, shlex.split(line), environ or {})[1]


@pytest.mark.parametrize(
    "line",
    [
        "VLLM_FLASHINFER_WORKSPACE_BUFER_SIZE=1 vllm serve m",
        "export FLASHINFER_WORKSPACE_BUFFER_SIZE=1; vllm serve m",
        "docker run -e VLLM_FLASHINFER_WORKSPACE_SIZE=1 image vllm serve m",
    ],
)
def test_a_misspelt_one_is_refused_with_the_one_that_was_meant(line: str) -> None:
    with pytest.raises(InputError, match=f"is no variable of vllm: did you mean {VLLM}[?]"):
        notes_on(line)


def test_so_is_one_of_sglang() -> None:
    said = rf"FLASHINFER_WORKSPACE_SIZE of .* no variable of sglang: did you mean {SGLANG}\?"
    with pytest.raises(InputError, match=said):
        notes_on("FLASHINFER_WORKSPACE_SIZE=1 sglang serve --model-path m")


@pytest.mark.parametrize(
    "line",
    [
        "FLASHINFER_WORKSPACE_BASE=/x HF_HOME=/y vllm serve m",
        # An image for both engines sets both.
        f"{SGLANG}=1 {VLLM}=413138944 vllm serve m",
    ],
)
def test_what_is_right_is_not(line: str) -> None:
    assert not any("did you mean" in note for note in notes_on(line))


def test_another_engines_is_told() -> None:
    """Several engines may share an environment; the plan is right without it."""
    told = f"ignored: {SGLANG} of the launch command is sglang's: vllm reads {VLLM}"
    assert told in notes_on(f"{SGLANG}=1 vllm serve m")
    told = f"ignored: {VLLM} of the launch command is vllm's: sglang reads {SGLANG}"
    assert told in notes_on(f"{VLLM}=1 sglang serve m")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0", "must be between 1 and"),
        ("-1", "must be between 1 and"),
        ("'$SIZE'", r"the shell did not fill in \$SIZE: write its value"),
        ("1GiB", "1GiB is not a whole number of bytes: write a whole number"),
    ],
)
def test_a_bad_size_names_the_variable(value: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^{VLLM}.*{said}"):
        notes_on(f"{VLLM}={value} vllm serve m")


def test_a_newer_release_may_have_it() -> None:
    notes = notes_on("VLLM_FLASHINFER_WORKSPACE_SIZE=1 vllm serve m", version="0.99.0")
    assert any(note.startswith("ignored: VLLM_FLASHINFER_WORKSPACE_SIZE") for note in notes)


def test_an_inherited_one_is_told() -> None:
    """It may be meant for another command, as another engine's variable is."""
    environ = {"VLLM_FLASHINFER_WORKSPACE_BUFER_SIZE": "1", SGLANG: "1"}
    (note,) = [each for each in notes_on("vllm serve m", environ) if "did you mean" in each]
    assert note.startswith("ignored: VLLM_FLASHINFER_WORKSPACE_BUFER_SIZE, set here, is no")
    right = {**environ, VLLM: "413138944"}
    assert not any("did you mean" in note for note in notes_on("vllm serve m", right))


def test_what_is_meant() -> None:
    assert meant_variable("VLLM_WORKSPACE_BUFFER_SIZES") is None
    assert [meant_variable(name) for name in (VLLM, SGLANG)] == [None, None]
    assert meant_variable(SGLANG, "vllm") == VLLM
