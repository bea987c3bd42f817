"""A workspace that there was no room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from messages import VLLM, locked, out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]
    Explain = Callable[..., list[Finding]]


def test_locked_by_code_that_is_not_ours(explain_one: ExplainOne) -> None:
    found = explain_one([locked("modular_kernel.py:1167:_allocate_buffers", "146.41", "3.75")])
    assert found.confidence == "consistent"
    assert any("no workspace of FlashInfer's" in note for note in found.notes)


def test_memory_that_ran_out_elsewhere_is_not_ours(explain: Explain) -> None:
    assert explain([out_of_memory("2.00 GiB", "1.00 GiB")]) == []


def test_traceback_makes_out_of_memory_ours(explain_one: ExplainOne) -> None:
    lines = ["self._get_workspace_buffer()", out_of_memory("256.00 MiB", "100.00 MiB")]
    found = explain_one(lines)
    assert (found.size, found.confidence) == (256 << 20, "exact")


def test_memory_for_a_raised_workspace(explain_one: ExplainOne) -> None:
    # 2,561,671,168 bytes are 2.3857 GiB.
    lines = [f"{VLLM}=2561671168", out_of_memory("2.39 GiB", "1.00 GiB", "178.35 GiB")]
    found = explain_one(lines)
    assert (found.size, found.confidence) == (2_561_671_168, "consistent")
    assert any("short by 1,487,929,344 B" in note for note in found.notes)
