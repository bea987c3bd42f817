"""The verdict on the installed launcher, and on the same source with one fact changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ws_guard.contract import NotInstalledError, installed_contract, installed_source, judge, source
from ws_guard.sizing import OPS

flashinfer = pytest.importorskip("importlib.metadata").version("flashinfer-python")


def judged(release: str = "0.6.14", *changes: tuple[str, str]):  # noqa: ANN201 - Contract
    """The verdict on the installed source as if it were `release`, after textual changes."""
    found = installed_source()
    text = found.text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return judge(found._replace(release=release, text=text))


def test_the_installed_release_is_verified() -> None:
    found = installed_contract()
    assert (found.verdict, found.reason, found.release) == ("verified", "", "0.6.14")
    assert found.layout is not None
    assert found.layout.name == "B"
    assert set(found.signatures) == set(OPS.values())


@pytest.mark.parametrize(
    ("entry", "count", "query", "workspace", "q_len", "batch", "sm_count", "size", "lse"),
    [
        ("decode", 30, 2, 5, 8, 15, 18, 20, 27),
        ("context", 31, 2, 5, 8, 15, 19, 21, 28),
        ("ragged", 30, 1, 4, 6, 11, 15, 18, 21),
        ("dsv4", 17, 1, 4, 11, 10, 12, 14, None),
    ],
)
def test_positions(
    entry: str, count: int, query: int, workspace: int, q_len: int, batch: int, sm_count: int,
    size: int, lse: int | None,
) -> None:  # fmt: skip
    # Counted by hand in the launcher source of 0.6.14
    found, op = installed_contract(), OPS[entry]
    assert len(found.signatures[op]) == count
    names = ("query", "workspace_buffer", "max_q_len", "batch_size", "sm_count", "workspace_size")
    expected = [query, workspace, q_len, batch, sm_count, size]
    assert [found.position(op, name) for name in names] == expected
    assert found.position(op, "lse") == lse
    assert found.position(op, "multi_ctas_kv_counter_buffer") is None


@pytest.mark.parametrize(
    ("release", "why"),
    [
        ("0.8.0", "0.8.0 is outside 0.6.8.post1 to 0.7.4"),
        ("0.6.14.dev20260705", "0.6.14.dev20260705 is not a final release"),
        ("0.7.4", "0.7.4 carves by layout B, C was expected"),
        ("main", "flashinfer must be a release"),
    ],
)
def test_unverified_says_why_and_keeps_the_layout(release: str, why: str) -> None:
    found = judged(release)
    assert found.verdict == "unverified"
    assert why in found.reason
    assert found.layout is not None


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("Bytes = 1 * 1024 * 1024", "Bytes = 2 * 1024 * 1024", "stats guard is 2,097,152"),
        ("int64_t{256}", "int64_t{128}", "q rounding is 128, layout B has 256"),
        ("max_batch_size = 8192", "max_batch_size = 4096", "counter size is 4,194,304"),
        ("lse != nullptr", "lse_wanted", "slab under the unknown condition (lse_wanted)"),
        ("batch_size) *", "batch_size + 1) *", "trtllm_gen_softmax_workspace has an unknown size"),
        ("trtllm_gen_softmax_workspace", "other_workspace", "unknown slab other_workspace"),
        (
            ', 16,\n        "trtllm_gen_softmax',
            ', 32,\n        "trtllm_gen_softmax',
            "aligned to 32",
        ),
        ("TensorView workspace_buffer", "TensorView buffer", "has no parameter workspace_buffer"),
        (
            "TllmPagedAttentionMode::ForGen) {",
            "TllmPagedAttentionMode::Context) {",
            "context carves",
        ),
        ("TVM_FFI_DLL_EXPORT_TYPED_FUNC", "EXPORT", "no exported function"),
        ("aligned_alloc<float2>", "aligned_alloc<trtllm::Pair>", "written in another way"),
        (
            "(workspace_buffer, workspace_size)",
            "(workspace_buffer, workspace_size / 2)",
            "the allocator stands over (workspace_buffer, workspace_size / 2)",
        ),
        (
            "  AlignedAllocator",
            "  if (batch_size > 7) return;\n  AlignedAllocator",
            "a return before the allocator",
        ),
        ("void trtllm_ragged_attention(", "void gone(", "trtllm_ragged_attention is not defined"),
    ],
)
def test_a_changed_fact_is_a_mismatch_that_names_it(old: str, new: str, fact: str) -> None:
    found = judged("0.6.14", (old, new))
    assert found.verdict == "mismatch"
    assert fact in found.reason
    assert (found.layout, found.signatures) == (None, {})


def test_comments_do_not_matter() -> None:
    assert judged(
        "0.6.14", ("if (lse != nullptr)", "/* if (x) { */ if (lse != nullptr) // }\n")
    ).layout


def test_no_flashinfer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source, "package_root", lambda: tmp_path)
    with pytest.raises(NotInstalledError, match=r"ships no trtllm_fmha_kernel_launcher\.cu$"):
        installed_contract()
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotInstalledError, match="flashinfer is not installed"):
        installed_contract()


def test_a_source_that_is_cut_anywhere_is_a_mismatch() -> None:
    found = installed_source()
    for end in range(0, found.text.index("TVM_FFI_DLL_EXPORT_TYPED_FUNC"), 997):
        assert judge(found._replace(text=found.text[:end])).verdict == "mismatch"
