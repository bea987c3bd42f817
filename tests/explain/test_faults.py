"""Who met a fault, and which are one and the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from messages import CRASH, STATS, overflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]
    Explain = Callable[..., list[Finding]]


def test_ranks_are_folded_and_named(explain_one: ExplainOne) -> None:
    lines = [
        f"(Worker_TP{n}_DCP{n} pid={n}) ERROR 07-05 12:00:01 [x.py:1] {CRASH}" for n in range(12)
    ]
    lines += [f"(EngineCore pid=9) ERROR 07-05 12:00:02 [core.py:9] {CRASH}"]
    found = explain_one(lines)
    assert found.ranks == tuple(f"Worker_TP{n}_DCP{n}" for n in range(12))


def test_pods_are_told_apart(explain_one: ExplainOne) -> None:
    lines = [
        f"[pod/vllm-{pod}/engine] (Worker_TP{rank} pid=3) {CRASH}" for pod in "ab" for rank in "01"
    ]
    ranks = ("vllm-a/Worker_TP0", "vllm-a/Worker_TP1", "vllm-b/Worker_TP0", "vllm-b/Worker_TP1")
    assert explain_one(lines).ranks == ranks


def test_faults_are_told_apart(explain: Explain) -> None:
    found = explain([CRASH, overflow(STATS, 404_881_408, 404_750_336), CRASH])
    assert sorted(each.size or 0 for each in found) == [404_881_408, 1_611_661_312]


def test_a_message_that_was_cut_is_the_same_fault(explain_one: ExplainOne) -> None:
    found = explain_one([CRASH[: CRASH.index(", but only")], CRASH])
    assert found.available == 404_750_336


def test_nothing_known(explain: Explain) -> None:
    assert explain(["INFO all is well", "and alignment, AlignedAllocator, out of memory"]) == []
