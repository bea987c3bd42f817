"""The installed XQA's contract, and the same source with one fact changed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ws_guard.contract import (
    XQA_SPEC_PREFIX,
    NotInstalledError,
    XqaContract,
    installed_contract,
    installed_xqa,
    judge_xqa,
    package_root,
    source,
)
from ws_guard.sizing import XQA_OPS

if TYPE_CHECKING:
    from pathlib import Path

OP, MLA = "xqa_wrapper", "xqa_wrapper_mla"
FILES = ("flashinfer_xqa_binding.cu", "xqa")


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    """A copy of the installed XQA sources."""
    installed = package_root() / "data/csrc"
    shutil.copy(installed / FILES[0], tmp_path)
    shutil.copytree(installed / FILES[1], tmp_path / FILES[1])
    return tmp_path


def changed(csrc: Path, file: str, old: str, new: str) -> XqaContract:
    """The verdict after a textual change."""
    text = (csrc / file).read_text()
    assert old in text
    (csrc / file).write_text(text.replace(old, new))
    return judge_xqa(csrc, "0.6.14")


def test_the_installed_release_is_understood() -> None:
    found = installed_xqa()
    assert (found.release, found.reasons) == ("0.6.14", {})
    assert set(found.signatures) == set(XQA_OPS.values()) == {OP, MLA}


def test_positions() -> None:
    # Counted by hand in xqa_wrapper.cu of 0.6.14
    found = installed_xqa()
    assert (len(found.signatures[OP]), len(found.signatures[MLA])) == (25, 16)
    names: tuple[str, ...] = (
        "run_sm90_fp8_mha",
        "multiProcessorCount",
        "nbKHeads",
        "output",
        "q",
        "maxSeqLen",
    )
    assert [found.position(OP, name) for name in names] == [0, 1, 2, 6, 8, 15]
    assert [found.position(MLA, name) for name in names] == [None, 0, None, 3, 4, 8]
    names = ("batchSize", "qSeqLen", "qCuSeqLens", "semaphores", "scratch")
    assert [found.position(OP, name) for name in names] == [17, 20, None, 22, 23]
    assert [found.position(MLA, name) for name in names] == [10, None, None, 13, 14]


def test_its_modules_are_told_by_their_specs_names() -> None:
    text = (package_root() / "jit/xqa.py").read_text()
    assert text.count('f"xqa_input_{') == text.count('f"xqa_mla_input_{') == 1
    assert "xqa_input_".startswith(XQA_SPEC_PREFIX)
    assert "xqa_mla_input_".startswith(XQA_SPEC_PREFIX)


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("xqa/mha.cu", "ctaShapeInWarps = {4, 1, 2}", "ctaShapeInWarps = {8, 1, 2}", "xqa/mha.cu"),
        ("xqa/mha.cu", "multiProcessorCount / (", "2 * multiProcessorCount / (", "xqa/mha.cu"),
        ("xqa/mha_sm90.cu", "factor = 0.25f", "factor = 0.5f", "xqa/mha_sm90.cu"),
        ("xqa/defines.h", "M_TILESIZE 32", "M_TILESIZE 64", "'#define M_TILESIZE 32'"),
        ("xqa/xqa_wrapper.cu", "TensorView scratch,", "TensorView rest,", "no parameter scratch"),
        ("xqa/xqa_wrapper.cu", "void xqa_wrapper(", "void gone(", "xqa_wrapper is not defined"),
    ],
)
def test_a_changed_fact_leaves_the_op_out_and_is_named(
    csrc: Path, file: str, old: str, new: str, reason: str
) -> None:
    found = changed(csrc, file, old, new)
    assert OP not in found.signatures
    assert reason in found.reasons[OP]


def test_mla_is_judged_for_itself(csrc: Path) -> None:
    old = "dimGrid{4 * inputSeqLen, 1, nbKHeads * batchSize}"
    found = changed(csrc, "xqa/mla_sm120.cu", old, old.replace(" 1,", " nbSubSeqPerSeq,"))
    assert set(found.signatures) == {OP}
    assert "xqa/mla_sm120.cu does not say" in found.reasons[MLA]


def test_comments_and_line_breaks_do_not_matter(csrc: Path) -> None:
    old = "constexpr uint3 ctaShapeInWarps = {4, 1, 2};"
    new = "constexpr uint3 /* of a CTA */ ctaShapeInWarps =\n    {4, 1, 2};  // warps"
    assert changed(csrc, "xqa/mha.cu", old, new).reasons == {}
    # What stands in a comment is not said
    assert OP in changed(csrc, "xqa/defines.h", "#define M_TILESIZE 32", "// M_TILESIZE 32").reasons


def test_a_missing_file_is_named(csrc: Path) -> None:
    (csrc / "xqa/mha_sm90.cu").unlink()
    found = judge_xqa(csrc, "0.6.14")
    assert "no readable xqa/mha_sm90.cu" in found.reasons[OP]
    assert set(found.signatures) == {MLA}


def test_a_flashinfer_without_xqa_has_none(tmp_path: Path) -> None:
    assert judge_xqa(tmp_path, "0.2.9") == XqaContract("0.2.9", {}, {})


def test_an_op_that_is_not_exported_is_none_of_its_ops(csrc: Path) -> None:
    found = changed(csrc, FILES[0], "FUNC(xqa_wrapper_mla, xqa_wrapper_mla)", "FUNC(other, other)")
    assert (set(found.signatures), found.reasons) == ({OP}, {})


def test_a_source_that_is_cut_anywhere_is_no_error(csrc: Path) -> None:
    text = (csrc / "xqa/xqa_wrapper.cu").read_text()
    for end in range(0, text.index("#else\n\nvoid xqa_wrapper("), 97):
        (csrc / "xqa/xqa_wrapper.cu").write_text(text[:end])
        assert set(judge_xqa(csrc, "0.6.14").reasons) >= {OP}


def test_no_xqa_is_no_mismatch_of_trtllm_gen(csrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = installed_contract()
    (csrc / "xqa/xqa_wrapper.cu").write_text("")
    assert set(judge_xqa(csrc, "0.6.14").reasons) == {OP, MLA}
    assert installed_contract() == before
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotInstalledError, match="flashinfer is not installed"):
        source.package_root()
    with pytest.raises(NotInstalledError, match="flashinfer is not installed"):
        installed_xqa()
