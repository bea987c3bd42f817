"""Which calls a graph captures: streams, threads, failures, calls that are refused or cut."""

from __future__ import annotations

import threading
from typing import Any

from graph_stage import Stage
from native_calls import REFUSAL, REFUSED_BATCH, decode_arguments
from scenarios import MODES, error_of, in_thread, scenario

from ws_guard import WorkspaceOverflowError
from ws_guard.board import OVERFLOW


@scenario()
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


@scenario()
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


@scenario()
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


@scenario()
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


@scenario()
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


@scenario()
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


@scenario()
def failed_capture_is_over_though_nobody_uses_its_stream_again(at: Stage) -> None:
    """The engine goes on without graphs, on its own stream; zones are looked at again."""
    for _ in range(8):
        at.call(16)
    fail_to_capture(at, at.graph())
    assert not at.watched.graphs.capturing
    at.call(16)
    assert len(at.watched.ledger.known) == 1
    assert at.counts(*MODES) == {16: (9, 1, 0)}


@scenario()
def capture_that_cannot_begin_is_none(at: Stage) -> None:
    graph, other = at.graph(), at.graph()
    with at.capture(graph):
        assert "not permitted" in str(error_of(other.capture_begin))
        at.call(16)
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 1, 1)}


@scenario()
def capture_whose_failure_nobody_told_gives_way_to_the_next(at: Stage) -> None:
    """The graph is captured again at once, with no call in between."""
    graph = at.graph()
    fail_to_capture(at, graph)
    with at.capture(graph):
        at.call(32)
    assert not at.watched.graphs.capturing
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 1, 0), 32: (0, 1, 1)}


@scenario()
def refused_call_is_not_in_the_graph(at: Stage) -> None:
    """The engine catches the error and goes on; this stand-in launches what it is told to."""
    refusal = RuntimeError(REFUSAL)

    def refuse(*_args: object) -> None:
        raise refusal

    graph, refused = at.graph(), at.watched.over(refuse)
    with at.capture(graph):
        at.call(16)
        assert error_of(lambda: refused(*decode_arguments(REFUSED_BATCH, at.buffer))) is refusal
    graph.replay()
    assert at.counts(*MODES) == {16: (0, 1, 1), REFUSED_BATCH: (0, 1, 0)}
    assert at.slot.events == {(0, OVERFLOW, "observed"): 1}


@scenario(action="raise")
def raised_call_is_not_in_the_graph(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(16)
        assert isinstance(error_of(lambda: at.call(REFUSED_BATCH)), WorkspaceOverflowError)
        at.call(16)
    for _ in range(10):
        graph.replay()
    assert at.counts(*MODES) == {16: (0, 2, 20), REFUSED_BATCH: (0, 1, 0)}
    assert at.slot.events == {(0, OVERFLOW, "raised"): 1}
    assert at.launched == [16, 16]


@scenario(action="split")
def split_call_is_in_the_graph_as_one(at: Stage) -> None:
    graph = at.graph()
    with at.capture(graph):
        at.call(REFUSED_BATCH)
    assert at.launched == [3_072] * 4
    for _ in range(10):
        graph.replay()
    assert at.counts(*MODES) == {REFUSED_BATCH: (0, 1, 10)}
    assert at.slot.events == {(0, OVERFLOW, "split"): 1}
