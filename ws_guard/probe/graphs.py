"""Counts what replayed CUDA graphs do: Python runs at capture only.

The calls captured into a graph are remembered on the graph object and added at every replay. How
captures and replays come to be known is the matter of `graph_hooks`.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ws_guard.board import OVERRUN, Outcome
from ws_guard.board.format import COUNT_REPLAYED, REPLAYS, SUM_REPLAYED, Header
from ws_guard.foreign import CudaGraph, Foreign, Tensor

from . import hot
from .calls import Key, Met, NativeCall
from .recorder import Recorder

if TYPE_CHECKING:
    from .guard import Done
    from .ledger import Ledger

#: The attribute of a graph object that holds its account.
ACCOUNT = "_ws_guard_account"


class _Remembered(NamedTuple):
    """Stands for the arguments of a call that was captured: what mattered of them."""

    native: NativeCall

    def read(self, _args: tuple[Any, ...]) -> NativeCall:
        return self.native

    def with_workspace(self, args: tuple[Any, ...], _workspace: Tensor) -> tuple[Any, ...]:
        return args


class GraphAccount(hot.Account):  # type: ignore[misc]  # in C or not, by what was built
    """The calls captured into one graph.

    `additions` is what one replay adds to the slot's words: (word, how much).
    """

    def __init__(self) -> None:
        self.additions: tuple[tuple[int, int], ...] = ()
        self.words: Any = None
        self.times: Any = None
        self.rows: tuple[int, ...] = ()
        self.overruns: list[str] = []
        self._calls: dict[tuple[Ledger, Key], tuple[Met, int]] = {}

    def add(self, ledger: Ledger, met: Met, done: Done) -> None:
        """Remember a call that is being captured, unless it was raised or refused."""
        if done.outcome in (Outcome.RAISED, Outcome.OVERFLOW):
            return
        # Not the tensors: a graph keeps its own alive, and no others.
        native, args = met.read(), ()
        kept = met._replace(like=None, workspace=None, args=args, where=_Remembered(native))
        _, count = self._calls.get((ledger, met.key)) or (kept, 0)
        self._calls[ledger, met.key] = kept, count + 1
        if done.outcome == Outcome.OVERRUN:
            self.overruns.append(ledger.op)

    def settle(self, recorder: Recorder) -> None:
        """Work out what a replay adds to the slot as it is now."""
        added: dict[int, int] = {}
        rows = []
        for (ledger, _), (met, count) in self._calls.items():
            row = ledger.row_of(met)
            rows.append(row.number)
            word = row.first_word + COUNT_REPLAYED
            added[word] = added.get(word, 0) + count
            if row.folded:
                word = row.first_word + SUM_REPLAYED
                added[word] = added.get(word, 0) + count * met.batch
        self.words, self.times = recorder.slot.words, recorder.slot.last_call
        self.rows = tuple(dict.fromkeys(rows))
        self.additions = tuple(added.items())
        slot = recorder.slot
        places = tuple((slot.address_of(word), much) for word, much in self.additions)
        self.hold(places, slot.address_of(Header.LAST_CALL + REPLAYS))


class _Capture(NamedTuple):
    """A capture under way: the thread that began it, and the stream that it captures."""

    account: GraphAccount
    thread: int
    stream: object


class Graphs:
    """The captures under way in this process, and the accounts of its graphs."""

    def __init__(self, recorder: Recorder) -> None:
        #: Called when a capture begins and when it ends.
        self.on_capture: list[Callable[[], None]] = []
        #: Whether the calling thread's stream is being captured now; asked during captures alone.
        self.is_capturing: Callable[[], bool] = lambda: True
        #: Whether the end of a capture is always seen, of one that failed too.
        self.ends_are_seen = True
        #: The stream that the calling thread uses now, without asking CUDA.
        self.current_stream: Callable[[], object] = threading.get_ident
        #: Streams that were captured: what ran on them before was the warm-up.
        self.captured_streams: set[object] = set()
        self._recorder = recorder
        self._captures: list[_Capture] = []
        self._accounts: weakref.WeakSet[GraphAccount] = weakref.WeakSet()
        self._current: GraphAccount | None = None
        recorder.before_new_slot.append(self._let_go)
        recorder.after_new_slot.append(self._settle_all)

    def stream_of(self, tensor: Tensor) -> object:
        """The stream that a call with a tensor runs on; None where there are none."""
        return self.current_stream() if tensor.is_cuda else None

    @property
    def capturing(self) -> bool:
        """Whether any thread captures a graph."""
        return bool(self._captures)

    def begin_capture(self, graph: CudaGraph) -> None:
        """A graph's capture has begun in this thread; what it held before is gone."""
        try:
            with self._recorder.lock:
                # A capture of the graph that failed may have ended unseen.
                self._forget(getattr(graph, ACCOUNT, None))
                account = GraphAccount()
                setattr(graph, ACCOUNT, account)
                capture = _Capture(account, threading.get_ident(), self.current_stream())
                self._captures.append(capture)
                self.captured_streams.add(capture.stream)
                self._tell()
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            self._recorder.stumbled(error)

    def end_capture(self, graph: CudaGraph) -> None:
        """A graph's capture has ended, well or not."""
        try:
            with self._recorder.lock:
                account = getattr(graph, ACCOUNT, None)
                self._forget(account)
                self._tell()
                if account is not None:
                    account.settle(self._recorder)
                    self._accounts.add(account)
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            self._recorder.stumbled(error)

    def capture_of_this_call(self) -> GraphAccount | None:
        """The graph that a call made now goes into, if its stream is being captured: the one that
        captures this stream, else the thread's own, which captures every stream that joined it."""
        if not self._captures:
            return None
        stream, thread = self.current_stream(), threading.get_ident()
        # Micro-batches run in threads of their own, on the stream that is captured.
        on_stream = [each for each in self._captures if each.stream == stream]
        own = [each for each in self._captures if each.thread == thread]
        if (on_stream and self.ends_are_seen) or self.is_capturing():
            return (on_stream or own or self._captures)[-1].account
        # Nobody tells of a capture that failed, but its stream has gone back to work.
        for failed in on_stream:
            self._forget(failed.account)
            self._tell()
        return None

    def _forget(self, account: GraphAccount | None) -> None:
        self._captures = [each for each in self._captures if each.account is not account]

    def counter_of_replays(self) -> Callable[[Any], None]:
        """A function that accounts for a replay of the graph it is given: the hot path."""
        recorder = self._recorder

        def count(graph: CudaGraph) -> None:
            try:
                account: GraphAccount | None = graph._ws_guard_account
                if account is not None:
                    words = account.words
                    for word, much in account.additions:
                        words[word] += much
                    if account is self._current:
                        account.times[REPLAYS] = monotonic()
                    elif account.additions:
                        self._begin_run(account)
            except Exception as error:  # noqa: BLE001 - the probe never harms the engine
                recorder.stumbled(error)

        return hot.counting(count)

    def counting(self, launch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A method that does what `launch` does and accounts for the replay.

        As `counter_of_replays`, without the call: a replay is little more than a call itself.
        """
        recorder = self._recorder

        @functools.wraps(launch)
        def replay(graph: CudaGraph) -> Foreign:
            try:
                account: GraphAccount | None = graph._ws_guard_account
                if account is not None:
                    words = account.words
                    for word, much in account.additions:
                        words[word] += much
                    if account is self._current:
                        account.times[REPLAYS] = monotonic()
                    elif account.additions:
                        self._begin_run(account)
            except Exception as error:  # noqa: BLE001 - the probe never harms the engine
                recorder.stumbled(error)
            return launch(graph)

        return hot.replaying(launch, replay)

    def _begin_run(self, account: GraphAccount) -> None:
        """Another graph than the one before is replayed, or one that overruns at every replay."""
        with self._recorder.lock:
            if account not in self._accounts:
                return  # captured under a probe that was taken away since
            # One that overruns is never the current one: each of its replays comes here.
            self._turn_to(None if account.overruns else account)
            for row in account.rows:
                self._recorder.slot.begin_run(REPLAYS, row, Outcome.REPLAYED)
            for op in account.overruns:
                self._recorder.add_event(op, OVERRUN, "observed")

    def _turn_to(self, account: GraphAccount | None) -> None:
        """Replays of this graph need only be counted from now on."""
        if self._current is not None:
            self._current.is_current = 0
        self._current = account
        if account is not None:
            account.is_current = 1

    def _let_go(self) -> None:
        for account in list(self._accounts):
            account.forget()

    def _settle_all(self) -> None:
        self._turn_to(None)
        for account in list(self._accounts):
            account.settle(self._recorder)

    def _tell(self) -> None:
        for told in self.on_capture:
            told()
