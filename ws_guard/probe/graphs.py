"""Counts what replayed CUDA graphs do: Python runs at capture only.

The calls captured into a graph are remembered on the graph object and added at every replay. How
captures and replays come to be known is the matter of `graph_hooks`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ws_guard.board import OVERRUN, Outcome
from ws_guard.board.format import COUNT_REPLAYED, REPLAYS, SUM_REPLAYED

from .calls import Key, NativeCall
from .recorder import Recorder

if TYPE_CHECKING:
    from .guard import Done
    from .ledger import Ledger

#: The attribute of a graph object that holds its account.
ACCOUNT = "_ws_guard_account"


class GraphAccount:
    """The calls captured into one graph.

    `additions` is what one replay adds to the slot's words: (word, how much).
    """

    def __init__(self) -> None:
        self.additions: tuple[tuple[int, int], ...] = ()
        self.words: Any = None
        self.times: Any = None
        self.rows: tuple[int, ...] = ()
        self.overruns: list[str] = []
        self._calls: dict[tuple[Ledger, Key], tuple[NativeCall, int]] = {}

    def add(self, ledger: Ledger, key: Key, read: Callable[[], NativeCall], done: Done) -> None:
        """Remember a call that is being captured, unless it was raised or refused."""
        if done.outcome in (Outcome.RAISED, Outcome.OVERFLOW):
            return
        native, count = self._calls.get((ledger, key)) or (read(), 0)
        self._calls[ledger, key] = native, count + 1
        if done.outcome == Outcome.OVERRUN:
            self.overruns.append(ledger.op)

    def settle(self, recorder: Recorder) -> None:
        """Work out what a replay adds to the slot as it is now."""
        added: dict[int, int] = {}
        rows = []
        for (ledger, key), (native, count) in self._calls.items():
            row = ledger.row_of(key, native)
            rows.append(row.number)
            word = row.first_word + COUNT_REPLAYED
            added[word] = added.get(word, 0) + count
            if row.folded:
                word = row.first_word + SUM_REPLAYED
                added[word] = added.get(word, 0) + count * native.batch
        self.words, self.times = recorder.slot.words, recorder.slot.last_call
        self.rows = tuple(dict.fromkeys(rows))
        self.additions = tuple(added.items())


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
        self._recorder = recorder
        self._captures: list[_Capture] = []
        self._accounts: weakref.WeakSet[GraphAccount] = weakref.WeakSet()
        self._current: GraphAccount | None = None
        recorder.after_new_slot.append(self._settle_all)

    @property
    def capturing(self) -> bool:
        """Whether any thread captures a graph."""
        return bool(self._captures)

    def begin_capture(self, graph: Any) -> None:  # noqa: ANN401 - a torch.cuda.CUDAGraph
        """A graph's capture has begun in this thread; what it held before is gone."""
        try:
            with self._recorder.lock:
                # A capture of the graph that failed may have ended unseen.
                self._forget(getattr(graph, ACCOUNT, None))
                account = GraphAccount()
                setattr(graph, ACCOUNT, account)
                capture = _Capture(account, threading.get_ident(), self.current_stream())
                self._captures.append(capture)
                self._tell()
        except Exception as error:  # noqa: BLE001 - the probe never harms the engine
            self._recorder.stumbled(error)

    def end_capture(self, graph: Any) -> None:  # noqa: ANN401 - a torch.cuda.CUDAGraph
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

    def _begin_run(self, account: GraphAccount) -> None:
        """Another graph than the one before is replayed."""
        with self._recorder.lock:
            if account not in self._accounts:
                return  # captured under a probe that was taken away since
            self._current = account
            for row in account.rows:
                self._recorder.slot.begin_run(REPLAYS, row, Outcome.REPLAYED)

    def _note_overruns(self, account: GraphAccount) -> None:
        """Count the overruns of a replay: the same as at capture."""
        for op in account.overruns:
            self._recorder.add_event(op, OVERRUN, "observed")

    def counter_of_replays(self) -> Callable[[Any], None]:
        """A function that accounts for a replay of the graph it is given: the hot path."""
        recorder = self._recorder

        def count(graph: Any) -> None:  # noqa: ANN401 - a torch.cuda.CUDAGraph
            try:
                account = graph._ws_guard_account
                if account is not None and account.additions:
                    words, times = account.words, account.times
                    for word, much in account.additions:
                        words[word] += much
                    if self._current is account:
                        times[REPLAYS] = monotonic()
                    else:
                        self._begin_run(account)
                    if account.overruns:
                        self._note_overruns(account)
            except Exception as error:  # noqa: BLE001 - the probe never harms the engine
                recorder.stumbled(error)

        return count

    def _settle_all(self) -> None:
        self._current = None
        for account in list(self._accounts):
            account.settle(self._recorder)

    def _tell(self) -> None:
        for told in self.on_capture:
            told()
