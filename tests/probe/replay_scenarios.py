"""What a replay counts: modes, runs, overruns, other slots, other graphs."""

from __future__ import annotations

import gc
import threading
from typing import Any

from graph_stage import Stage, has_hooks
from native_calls import NO_FRONT, Told, sparse_call, workspace
from scenarios import MIB, MODES, scenario

from ws_guard.board import OVERRUN, Outcome
from ws_guard.board.format import EXACT_ROWS
from ws_guard.exporter.derive import Deriver
from ws_guard.probe.calls import Met


@scenario()
def captured_once_and_replayed_1000_times(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(16, times=3)
        at.call(32)
    for _ in range(1_000):
        graph.replay()
    assert at.counts(*MODES) == {16: (0, 3, 3_000), 32: (0, 1, 1_000)}
    # Python ran at capture alone; the graph was really launched.
    assert (at.launched, graph.launches) == ([16, 16, 16, 32], 1_000)
    assert at.slot.probe_errors == 0


@scenario()
def eager_calls_and_replays_are_told_apart(at: Stage) -> None:
    graph = at.graph()
    at.call(16, times=10)
    with at.capture(graph):
        at.call(16, times=2)
    for _ in range(50):
        at.call(16, times=3)
        graph.replay()
        at.call(48)
    assert at.counts(*MODES) == {16: (160, 2, 100), 48: (50, 0, 0)}


@scenario()
def histogram_counts_what_ran(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(16)
        at.call(70, times=2)
    at.call(16, times=7)
    at.call(3_000)
    for _ in range(9):
        graph.replay()
    (op,) = Deriver().observe(at.slot).worker.ops
    assert op.calls == {"eager": 8, "captured": 3, "replayed": 27}
    assert sum(op.batch_counts) == op.calls["eager"] + op.calls["replayed"] == 35
    # Up to 16 rows, up to 256, up to 4,096.
    assert [count for count in op.batch_counts if count] == [7 + 9, 18, 1]
    assert op.batch_sum == 7 * 16 + 3_000 + 9 * (16 + 2 * 70)


@scenario()
def graphs_that_share_a_pool_have_accounts_of_their_own(at: Stage) -> None:
    first, second = at.graph(), at.graph()
    with at.capture(first):
        at.call(16)
    with at.capture(second, pool=first.pool()):
        at.call(16)
        at.call(32)
    for _ in range(10):
        first.replay()
        second.replay()
        second.replay()
    assert at.counts(*MODES) == {16: (0, 2, 30), 32: (0, 1, 20)}


@scenario()
def deleted_graphs_leave_nothing_behind(at: Stage) -> None:
    kept = at.graph()
    with at.capture(kept):
        at.call(16)
    for _ in range(5):
        graph = at.graph()
        with at.capture(graph):
            at.call(32)
        graph.replay()
    del graph
    kept.replay()
    gc.collect()
    assert len(at.watched.graphs._accounts) == 1
    assert at.counts(*MODES) == {16: (0, 1, 1), 32: (0, 5, 5)}


@scenario()
def stored_replay_counts(at: Stage) -> None:
    """VLLM keeps `graph.replay`, bound, from before the first replay."""
    graph = at.graph()
    replay = graph.replay
    with at.capture(graph):
        at.call(16)
    for _ in range(10):
        replay()
    at.hooks.leave()
    for _ in range(10):
        replay()
    assert graph.launches == 20
    # Without its hooks torch tells nothing; a wrapper that somebody has kept still counts.
    assert at.counts(*MODES) == {16: (0, 1, 10 if has_hooks() else 20)}
    assert at.slot.probe_errors == 0


@scenario()
def graph_kept_for_changes_counts(at: Stage) -> None:
    graph = at.graph(keep_graph=True)
    with at.capture(graph):
        at.call(16)
    if not has_hooks():
        graph.instantiate()
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 1, 1)}


@scenario()
def slot_opened_after_the_capture_gets_the_replays(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(16, times=2)
        at.call(32)
    graph.replay()
    # As in a forked child, or when an engine's plugin attaches late.
    at.recorder.forget_slot()
    at.recorder.attach_if_pending()
    for _ in range(5):
        graph.replay()
    assert at.counts(*MODES) == {16: (0, 0, 10), 32: (0, 0, 5)}
    (call,) = [call for call in at.slot.calls if call.shape.batch == 32]
    assert call.outcome == Outcome.REPLAYED
    assert at.slot.document["workspaces"] == ["ws0"]


@scenario()
def overrun_in_a_graph_counts_at_every_replay(at: Stage) -> None:
    """74 rows in 12 MiB: after 8 MiB of counters too little is left for their scratch."""
    graph = at.graph()
    with at.capture(graph):
        at.call(74, times=2, workspace=workspace(12 * MIB), lse=False)
    assert at.slot.events == {(0, OVERRUN, "observed"): 2}
    before = at.slot.last_overrun_ns
    for _ in range(10):
        graph.replay()
    assert at.slot.events == {(0, OVERRUN, "observed"): 2 + 20}
    assert at.slot.last_overrun_ns > before
    assert at.counts(*MODES) == {74: (0, 2, 20)}


@scenario()
def shapes_beyond_the_table_replay_into_their_row(at: Stage) -> None:
    for batch in range(1, EXACT_ROWS + 1):
        at.watched.ledger.row_of(met_with(batch))
    graph = at.graph()
    with at.capture(graph):
        at.call(20_000, lse=False)
        at.call(30_000, times=2, lse=False)
    for _ in range(10):
        graph.replay()
    (row,) = (row for row in at.slot.rows if row.folded)
    assert (row.eager, row.captured, row.replayed) == (0, 3, 30)
    assert (row.sum_eager, row.sum_replayed) == (0, 10 * (20_000 + 2 * 30_000))


def met_with(batch: int) -> Met:
    """A harmless call that fills a row."""
    call = sparse_call(batch, 1 << 40)
    address, size = call.workspace_address, call.workspace_bytes
    return Met((batch,), None, NO_FRONT, batch, True, None, address, size, (), Told(call))


@scenario()
def run_of_replays_is_told_with_its_last_moment(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(16)
    graph.replay()
    (first,) = (call for call in at.slot.calls if call.outcome == Outcome.REPLAYED)
    graph.replay()
    (last,) = (call for call in at.slot.calls if call.outcome == Outcome.REPLAYED)
    assert last.at_ns > first.at_ns
    outcomes = {call.outcome for call in at.slot.calls}
    assert outcomes == {Outcome.CAPTURED, Outcome.REPLAYED}


@scenario()
def graphs_of_others_count_nothing(at: Stage) -> None:
    """One captured before the probe came, and one without a native call."""
    at.hooks.leave()
    early, empty = at.graph(), at.graph()
    with at.capture(early):
        at.call(16, times=5)
    at.hooks.enter()
    with at.capture(empty):
        pass
    early.replay()
    empty.replay()
    assert at.counts(*MODES) == {16: (5, 0, 0)}
    assert at.slot.probe_errors == 0


@scenario()
def threads_that_replay_lose_none(at: Stage) -> None:
    graphs = [at.graph() for _ in range(4)]
    for graph in graphs:
        with at.capture(graph):
            at.call(16, times=2)

    def replay(graph: Any) -> None:
        for _ in range(5_000):
            graph.replay()

    threads = [threading.Thread(target=replay, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at.counts(*MODES) == {16: (0, 8, 4 * 5_000 * 2)}
