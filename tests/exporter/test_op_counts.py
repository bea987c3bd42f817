"""What a worker's ops are counted by: modes, buckets of batches, events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slot_worker import CONTEXT, DECODE, make_shape
from views import view

from ws_guard.board import OVERFLOW, OVERRUN, Row
from ws_guard.board.format import EXACT_ROWS
from ws_guard.exporter.derive import Deriver

if TYPE_CHECKING:
    from conftest import Attach

    from ws_guard.exporter.model import Worker
    from ws_guard.exporter.snapshot import BoardWatch


def the_worker(watch: BoardWatch) -> Worker:
    (observed,) = watch.read().slots
    return observed.worker


def test_buckets_end_with_powers_of_four(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    for batch in (1, 4, 5, 16, 17, 65_536, 65_537):
        worker.call(batch)
    worker.call(17, mode="replayed", count=3)
    worker.call(17, mode="captured", count=50)
    (op,) = the_worker(watch).ops
    # Bounds 1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, and beyond.
    assert op.batch_counts == (1, 1, 2, 4, 0, 0, 0, 0, 1, 1)
    assert op.batch_sum == 1 + 4 + 5 + 16 + 4 * 17 + 65_536 + 65_537


def test_folded_rows_keep_their_sums() -> None:
    shape = make_shape(1_000)  # the worst of those that folded: 513 to 1,024
    row = Row(shape, True, 3, 0, 2, 0, sum_eager=2_000, sum_replayed=1_200)
    (op,) = Deriver().observe(view([row])).worker.ops
    # 1,024 ends the sixth bucket.
    assert op.batch_counts == (0, 0, 0, 0, 0, 5, 0, 0, 0, 0)
    assert op.batch_sum == 3_200


def test_a_real_slot_folds_into_the_right_bucket(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    for serial in range(EXACT_ROWS):
        worker.call(1, first_seen_ns=serial + 1, outcome=None)
    for batch in (600, 700, 1_024):
        worker.call(batch, outcome=None)
    found = the_worker(watch)
    ((op,), (site,)) = found.ops, found.workspaces
    assert op.batch_counts == (EXACT_ROWS, 0, 0, 0, 0, 3, 0, 0, 0, 0)
    assert op.batch_sum == EXACT_ROWS + 600 + 700 + 1_024
    assert site.peak is not None
    assert site.peak.batch == 1_024


def test_events_by_op_and_action(attach: Attach, watch: BoardWatch) -> None:
    worker = attach()
    worker.event(OVERFLOW, "split", op=1, count=2)
    worker.event(OVERRUN, "observed", op=0)
    by_name = {op.op: op for op in the_worker(watch).ops}
    assert by_name[CONTEXT].overflows == {"split": 2}
    assert by_name[CONTEXT].overruns == {}
    assert by_name[DECODE].overruns == {"observed": 1}
