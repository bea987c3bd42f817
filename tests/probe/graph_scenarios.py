"""What is captured, replayed and counted. Each scenario holds for patched and for hooked graphs.

Runs without pytest too: `python graph_scenarios.py` prints as JSON what became of each.
"""

from __future__ import annotations

import gc
import json
import threading
import traceback
from typing import TYPE_CHECKING, Any

import torch
from graph_stage import Stage, has_hooks, stage
from native_calls import NO_FRONT, Told, decode_arguments, workspace

from ws_guard import WorkspaceOverflowError
from ws_guard.board import OVERFLOW, OVERRUN, Outcome
from ws_guard.board.format import EXACT_ROWS
from ws_guard.exporter.derive import Deriver
from ws_guard.probe.calls import Met, NativeCall
from ws_guard.sizing import HeadDims

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
MODES = ("eager", "captured", "replayed")


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


def captured_again_it_is_another_graph(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(16)
    graph.replay()
    graph.reset()
    with at.capture(graph):
        at.call(32)
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 1, 1), 32: (0, 1, 1)}


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


def graph_kept_for_changes_counts(at: Stage) -> None:
    graph = at.graph(keep_graph=True)
    with at.capture(graph):
        at.call(16)
    if not has_hooks():
        graph.instantiate()
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 1, 1)}


def micro_batches_capture_from_threads_of_their_own(at: Stage) -> None:
    """On the stream that is captured, or on one that has joined it."""

    def micro_batch(stream: str, batch: int) -> None:
        with at.cuda.on(stream):
            at.call(batch, times=2)

    graph = at.graph()
    with at.capture(graph, stream="compute"):
        at.cuda.join("communication")
        in_thread(lambda: micro_batch("compute", 16))
        in_thread(lambda: micro_batch("communication", 32))
        # A thread that has nothing to do with it.
        in_thread(lambda: micro_batch("elsewhere", 48))
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 2, 2), 32: (0, 2, 2), 48: (2, 0, 0)}


def captures_may_nest(at: Stage) -> None:
    outer, inner = at.graph(), at.graph()
    with at.capture(outer, stream="outer"):
        at.call(1)
        with at.capture(inner, stream="inner"):
            at.call(2)
            with at.cuda.on("outer"):
                at.call(3)
        at.call(4)
    outer.replay()
    inner.replay()
    inner.replay()
    assert at.counts(*MODES) == {1: (0, 1, 1), 2: (0, 1, 2), 3: (0, 1, 1), 4: (0, 1, 1)}


def two_threads_capture_at_once(at: Stage) -> None:
    graphs = {16: at.graph(), 32: at.graph()}
    both = threading.Barrier(2)

    def capture(batch: int) -> None:
        with at.capture(graphs[batch], f"stream {batch}", capture_error_mode="thread_local"):
            both.wait()
            at.call(batch, times=5)
            both.wait()

    other = threading.Thread(target=capture, args=(16,))
    other.start()
    capture(32)
    other.join()
    graphs[16].replay()
    assert at.counts(*MODES) == {16: (0, 5, 5), 32: (0, 5, 0)}


def stream_that_has_not_joined_runs_at_once(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(16)
        with at.cuda.on("other"):
            at.call(32)
        at.call(16)
        at.cuda.join("other")
        with at.cuda.on("other"):
            at.call(48)
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 2, 2), 32: (1, 0, 0), 48: (0, 1, 1)}


def fail_to_capture(at: Stage, graph: Any) -> None:
    """A capture of one call that an unsafe one has invalidated."""

    def capture() -> None:
        with at.capture(graph):
            at.call(16)

    at.cuda.invalidated = True
    assert "previous error during capture" in str(error_of(capture))
    at.cuda.invalidated = False


def error_of(action: Callable[[], object]) -> RuntimeError:
    try:
        action()
    except RuntimeError as error:
        return error
    raise AssertionError("it went well")


def failed_capture_is_over(at: Stage) -> None:
    graph = at.graph()
    fail_to_capture(at, graph)
    with at.cuda.on("side"):
        at.call(16, times=10)
    assert not at.watched.graphs.capturing
    # The hot path has its shapes again.
    assert len(at.watched.ledger.known) == 1
    with at.capture(graph):
        at.call(32)
    graph.replay()
    assert at.counts(*MODES) == {16: (10, 1, 0), 32: (0, 1, 1)}


def failed_capture_is_over_though_nobody_uses_its_stream_again(at: Stage) -> None:
    """The engine goes on without graphs, on its own stream; zones are looked at again."""
    for _ in range(8):
        at.call(16)
    fail_to_capture(at, at.graph())
    assert not at.watched.graphs.capturing
    at.call(16)
    assert len(at.watched.ledger.known) == 1
    assert at.counts(*MODES) == {16: (9, 1, 0)}


def capture_that_cannot_begin_is_none(at: Stage) -> None:
    graph, other = at.graph(), at.graph()
    with at.capture(graph):
        assert "not permitted" in str(error_of(other.capture_begin))
        at.call(16)
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 1, 1)}


def capture_whose_failure_nobody_told_gives_way_to_the_next(at: Stage) -> None:
    """The graph is captured again at once, with no call in between."""
    graph = at.graph()
    fail_to_capture(at, graph)
    with at.capture(graph):
        at.call(32)
    assert not at.watched.graphs.capturing
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 1, 0), 32: (0, 1, 1)}


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
    dims, size = HeadDims(576, 512, 2048), 1 << 40
    call = NativeCall(batch, 64, 1, True, 148, size, 4096, dims, 2048, batch, None)
    return Met((batch,), None, NO_FRONT, batch, True, None, 4096, size, (), Told(call))


def refused_call_is_not_in_the_graph(at: Stage) -> None:
    """The engine catches the error and goes on; this stand-in launches what it is told to."""
    refusal = RuntimeError(
        "Buffer overflow when allocating memory for trtllm_gen_softmax_workspace"
    )

    def refuse(*_args: object) -> None:
        raise refusal

    graph, refused = at.graph(), at.watched.over(refuse)
    with at.capture(graph):
        at.call(16)
        assert error_of(lambda: refused(*decode_arguments(12_288, at.buffer))) is refusal
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 1, 1), 12_288: (0, 1, 0)}
    assert at.slot.events == {(0, OVERFLOW, "observed"): 1}


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


def in_thread(target: Callable[[], object]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


# -- raise and split -------------------------------------------------------------------------------


def raised_call_is_not_in_the_graph(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(16)
        assert isinstance(error_of(lambda: at.call(12_288)), WorkspaceOverflowError)
        at.call(16)
    for _ in range(10):
        graph.replay()
    assert at.counts(*MODES) == {16: (0, 2, 20), 12_288: (0, 1, 0)}
    assert at.slot.events == {(0, OVERFLOW, "raised"): 1}
    assert at.launched == [16, 16]


def split_call_is_in_the_graph_as_one(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(12_288)
    assert at.launched == [3_072] * 4
    for _ in range(10):
        graph.replay()
    assert at.counts(*MODES) == {12_288: (0, 1, 10)}
    assert at.slot.events == {(0, OVERFLOW, "split"): 1}


SCENARIOS: dict[str, Callable[[Stage], None]] = {
    scenario.__name__: scenario
    for scenario in (
        captured_once_and_replayed_1000_times,
        eager_calls_and_replays_are_told_apart,
        histogram_counts_what_ran,
        graphs_that_share_a_pool_have_accounts_of_their_own,
        captured_again_it_is_another_graph,
        deleted_graphs_leave_nothing_behind,
        stored_replay_counts,
        graph_kept_for_changes_counts,
        micro_batches_capture_from_threads_of_their_own,
        captures_may_nest,
        two_threads_capture_at_once,
        stream_that_has_not_joined_runs_at_once,
        failed_capture_is_over,
        failed_capture_is_over_though_nobody_uses_its_stream_again,
        capture_that_cannot_begin_is_none,
        capture_whose_failure_nobody_told_gives_way_to_the_next,
        slot_opened_after_the_capture_gets_the_replays,
        overrun_in_a_graph_counts_at_every_replay,
        shapes_beyond_the_table_replay_into_their_row,
        refused_call_is_not_in_the_graph,
        run_of_replays_is_told_with_its_last_moment,
        graphs_of_others_count_nothing,
        threads_that_replay_lose_none,
        raised_call_is_not_in_the_graph,
        split_call_is_in_the_graph_as_one,
    )
}
ACTIONS = {"raised_call_is_not_in_the_graph": "raise", "split_call_is_in_the_graph_as_one": "split"}


def run(name: str) -> None:
    """Play one scenario."""
    with stage(ACTIONS.get(name, "observe")) as set_up:
        SCENARIOS[name](set_up)
        assert set_up.problems == []


def outcome_of(name: str) -> str:
    """ "" where a scenario held, else the traceback."""
    try:
        run(name)
    except Exception:  # noqa: BLE001 - told to whoever asked
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    told = {"torch": torch.__version__, "has_hooks": has_hooks()}
    print(json.dumps(told | {"outcomes": {name: outcome_of(name) for name in SCENARIOS}}))
