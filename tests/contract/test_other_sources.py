"""The verdict on a newer launcher, on sources that this reader does not know, and where none is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ws_guard.contract import (
    installed_contract,
    installed_source,
    judge,
    judge_xqa,
    package_root,
)
from ws_guard.contract.source import LAUNCHER, LauncherSource

if TYPE_CHECKING:
    from ws_guard.contract import Contract

ROOT = Path(__file__).parents[2]
GUARD = "kTrtllmGenSoftmaxStatsGuardBytes, 16"
STATS = "sizeof(float2) * softmax_slots + kTrtllmGenSoftmaxStatsGuardBytes"


def newest() -> LauncherSource:
    """The launcher source of 0.7.4, as that release's environment has it."""
    found = next(
        (ROOT / ".venv-flashinfer-0.7.4").glob(
            f"lib/python3.*/site-packages/flashinfer/{LAUNCHER}"
        ),
        None,
    )
    if found is None:
        if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
            pytest.fail("WS_GUARD_REQUIRE_REAL=1, but there is no FlashInfer 0.7.4", pytrace=False)
        pytest.skip("there is no .venv-flashinfer-0.7.4")
    return LauncherSource("0.7.4", found, found.read_text())


def changed(source: LauncherSource, old: str, new: str, count: int = -1) -> Contract:
    """The verdict after a textual change, everywhere or at the first places."""
    assert old in source.text
    return judge(source._replace(text=source.text.replace(old, new, count)))


def test_the_newest_release_carves_by_layout_c() -> None:
    found = judge(newest())
    assert (found.verdict, found.reason) == ("verified", "")
    assert found.layout is not None
    assert found.layout.name == "C"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("(request_counter_slots, sm", "(sm_counter_slots, sm", "external counter of another size"),
        ("return num_semaphores *", "throw num_semaphores *", "CounterBytes returns nothing"),
        ("size) >= counter_bytes", "size) > 0", "external counter for none, layout C has it"),
        ("round_up(max_q_len, int64_t", "round_up(rows, int64_t", "size 'rows' is not defined"),
        (STATS, STATS.replace("+", "-"), "size expression '8 * softmax_slots - kTrtllmGen"),
        (STATS, STATS.replace("+", "+ *"), "size expression '8 * softmax_slots + * kTrtllmGen"),
        ("trtllm_ragged_attention_launcher(", "ragged(", "ragged_attention calls no launcher"),
        ("AlignedAllocator float", "Pool float", "slabs of an unknown allocator"),
        ("TYPED_FUNC(", "TYPED_FUNC(my_", "none of the known ops is exported, only my_"),
        (
            STATS,
            "sizeof(float2) * num_qo_heads * runner_params.mSumOfSeqLensQ",
            "ragged carves softmax_stats (stats_per_token if LSE), scratch (rest)",
        ),
    ],
)  # fmt: skip
def test_a_changed_fact_of_the_newest_release(old: str, new: str, why: str) -> None:
    found = changed(newest(), old, new)
    assert found.verdict == "mismatch"
    assert why in found.reason
    assert found.layout is None


def test_ops_that_carve_by_different_constants() -> None:
    """The first launcher alone: decode and context."""
    found = changed(installed_source(), GUARD, GUARD.replace(", 16", " + 1, 16"), 1)
    assert found.verdict == "mismatch"
    assert "slab rule padded_stats has different constants" in found.reason
    # 1 MiB, and one more; both round the query length up to 256.
    assert "[(1048576, 256), (1048577, 256)]" in found.reason


def test_a_size_that_is_made_of_itself() -> None:
    found = changed(
        installed_source(),
        "size_t const softmax_slots = ",
        "size_t const softmax_slots = softmax_slots + ",
    )
    assert found.verdict == "mismatch"
    assert "the source cannot be read (RecursionError" in found.reason


def test_a_release_that_is_no_release_is_compared_with_the_nearest_layout() -> None:
    """Layout B but for one constant; the release says nothing."""
    strange = installed_source()._replace(release="main")
    found = changed(strange, "Bytes = 1 * 1024 * 1024", "Bytes = 2 * 1024 * 1024")
    assert found.verdict == "mismatch"
    assert found.reason == "stats guard is 2,097,152, layout B has 1,048,576"


def test_an_op_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    """A parameter without a name."""
    csrc = package_root() / "data/csrc"
    shutil.copy(csrc / "flashinfer_xqa_binding.cu", tmp_path)
    shutil.copytree(csrc / "xqa", tmp_path / "xqa")
    wrapper = tmp_path / "xqa" / "xqa_wrapper.cu"
    text = wrapper.read_text()
    assert "void xqa_wrapper(bool" in text
    wrapper.write_text(text.replace("void xqa_wrapper(bool", "void xqa_wrapper(..., bool"))
    found = judge_xqa(tmp_path, "0.6.14")
    assert list(found.signatures) == ["xqa_wrapper_mla"]
    assert "the source cannot be read (IndexError" in found.reasons["xqa_wrapper"]


def test_a_package_that_was_copied_here_without_its_metadata(tmp_path: Path) -> None:
    target = tmp_path / "flashinfer" / LAUNCHER
    target.parent.mkdir(parents=True)
    shutil.copy(package_root() / LAUNCHER, target)
    (tmp_path / "flashinfer" / "__init__.py").touch()
    program = (
        f"import sys; sys.path[:0] = {[str(tmp_path), str(ROOT)]!r}\n"
        "from ws_guard.contract import NotInstalledError, installed_contract\n"
        "try: installed_contract()\n"
        "except NotInstalledError as error: print(error)\n"
        # Its module, once loaded, is asked before any metadata.
        "import flashinfer; flashinfer.__version__ = '0.6.14'\n"
        "print(installed_contract().release, installed_contract().verdict)\n"
    )
    # -S: no site-packages, where the metadata of the real one is.
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["flashinfer-python is not installed", "0.6.14 verified"]
    assert installed_contract().release == "0.6.14"
