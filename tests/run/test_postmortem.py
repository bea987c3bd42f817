"""The post-mortem from slots: which calls are told, and what is advised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from slot_worker import CONTEXT, CRASH_PLAN, SlotWorker, attaching

from ws_guard.board import OVERRUN, Board, Outcome
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.postmortem import Trouble, find_troubles, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Attach = Callable[..., SlotWorker]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(str(tmp_path / "board"))


@pytest.fixture
def attach(board: Board) -> Iterator[Attach]:
    """Workers of this process on the board."""
    with attaching(board) as attach:
        yield attach


@pytest.fixture
def troubles(board: Board) -> Callable[[], list[Trouble]]:
    return lambda: find_troubles(BoardWatch(board).read().slots)


def test_dead_worker_of_the_reported_crash(
    attach: Attach, troubles: Callable[[], list[Trouble]]
) -> None:
    worker = attach()
    worker.call(3_080)
    worker.overflow(12_288)
    worker.die()
    (trouble,) = troubles()
    # 8 * 64 * 12,288 * 256 + 1 MiB; 394 MiB less 8 MiB of counters.
    slab, available = 1_611_661_312, 404_750_336
    assert (trouble.slab, trouble.slab_bytes) == ("trtllm_gen_softmax_workspace", slab)
    assert trouble.available_bytes == available
    assert (trouble.need_bytes, trouble.threshold_batch) == (slab + 8_388_608, 3_080)
    assert trouble.recommended_bytes == 413_138_944 + slab
    told = text([trouble])
    assert "12,288     64      1  1,620,049,920  1,611,661,312  404,750,336      1" in told
    assert "set: workspace ws0 to 2,024,800,256 B (1.9 GiB), or steps to at most 3,080" in told


def test_plan_and_engine_know_better_what_to_set(
    attach: Attach, troubles: Callable[[], list[Trouble]]
) -> None:
    attach(planned=[CRASH_PLAN]).overflow(12_288)
    told = text(troubles())
    assert "set: VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=2561671168, or steps to at most 3,08" in told


def test_ranks_together_and_engines_apart(
    attach: Attach, troubles: Callable[[], list[Trouble]]
) -> None:
    for engine, rank in (("0", "0"), ("0", "1"), ("0", "2"), ("1", "0"), ("1", "5"), ("a", "b")):
        attach(engine=engine, rank=rank).overflow()
    told = text(troubles())
    assert "rank 0/0-2, 1/0, 1/5, a/b: trtllm_paged_attention_decode" in told


def test_every_workspace_has_its_advice(
    attach: Attach, troubles: Callable[[], list[Trouble]]
) -> None:
    worker = attach()
    worker.overflow(3_081)
    worker.overflow(4_096)
    worker.event(0)
    worker.call(8_192, workspace=1, outcome=Outcome.OVERFLOW)
    found = troubles()
    # Newest first.
    assert [trouble.batch for trouble in found] == [8_192, 4_096, 3_081]
    told = text(found)
    # 394 MiB + 8 * 64 * 256 * batch + 1 MiB.
    assert "set: workspace ws0 to 951,058,432 B" in told
    assert "set: workspace ws1 to 1,487,929,344 B" in told
    assert told.count("set: ") == 2


def test_call_that_was_split_is_no_trouble(
    attach: Attach, troubles: Callable[[], list[Trouble]]
) -> None:
    worker = attach()
    worker.event(0, "split")
    worker.call(4_096, outcome=Outcome.SPLIT)
    assert troubles() == []
    worker.event(0, "raised")
    worker.call(4_097, outcome=Outcome.RAISED)
    assert [trouble.batch for trouble in troubles()] == [4_097]


def test_overrun_is_suspect(attach: Attach, troubles: Callable[[], list[Trouble]]) -> None:
    worker = attach()
    worker.event(OVERRUN)
    # 12 MiB less 8 MiB of counters: too little for the scratch of 64 heads and 74 rows.
    worker.call(74, workspace_bytes=12 << 20, lse=False, outcome=Outcome.OVERRUN)
    told = text(troubles())
    assert "written beyond its end in workspace ws0 of 12,582,912 B (12.0 MiB)" in told
    assert "memory behind the workspace was overwritten" in told


def test_call_that_left_the_ring_is_told_by_its_number(
    attach: Attach, troubles: Callable[[], list[Trouble]]
) -> None:
    worker = attach(rank="3")
    worker.event(0, op=1, count=7)
    (trouble,) = troubles()
    assert (trouble.op, trouble.times, trouble.batch) == (CONTEXT, 7, None)
    told = text([trouble])
    assert f"rank 0/3: {CONTEXT}" in told
    assert "what workspace ? needs is not known" in told


def test_only_the_newest_of_many(attach: Attach, troubles: Callable[[], list[Trouble]]) -> None:
    worker = attach()
    for batch in range(4_000, 4_030):
        worker.overflow(batch)
    told = text(troubles())
    assert "\n  and 10 more\n" in told
    assert "  4,029 " in told
    # The advice is for all of them.
    assert "set: workspace ws0 to" in told
