"""What is done at the edge: let the native error happen, raise before it, or split the call."""

from __future__ import annotations

from typing import Any, NamedTuple

from ws_guard import sizing
from ws_guard.board import OVERFLOW, OVERRUN, Outcome
from ws_guard.foreign import Foreign
from ws_guard.sizing import Call, Layout

from .calls import Handling, NativeCall, NativeFunction
from .overflow import WorkspaceOverflowError
from .recorder import Recorder
from .split import Splitter, UnsplittableError


class Trouble(NamedTuple):
    """A shape that is refused, or whose scratch may not fit into what is left (bytes)."""

    call: Call
    refused: sizing.Refusal | None
    scratch_available: int

    def kind(self, native: NativeCall, layout: Layout) -> int | None:
        """OVERFLOW, OVERRUN, or None where this call of the shape does no harm for certain.

        An overrun is certain only where the scratch is known for this call's KV length.
        """
        if self.refused is not None:
            return OVERFLOW if self._is_refused(native, layout) else None
        dims = native.dims
        if native.max_kv_len is not None:
            dims = dims._replace(top_k=min(dims.top_k, native.max_kv_len))
        exact = self.call._replace(dims=dims, max_kv_len=native.max_kv_len, sum_q=native.sum_q)
        written = sizing.scratch(exact, layout)
        return OVERRUN if written.exact and written.bytes > self.scratch_available else None

    def _is_refused(self, native: NativeCall, layout: Layout) -> bool:
        """The external counter is not part of a shape: each call brings one of its own."""
        if self.refused is None or self.refused.slab != sizing.EXTERNAL_COUNTER:
            return True
        call = self.call._replace(counter_buffer_bytes=native.counter_buffer_bytes)
        address = native.workspace_address
        return not sizing.carve(call, layout, native.workspace_bytes, address).ok


class Done(NamedTuple):
    """What was done about a call: observed, raised or split (action and outcome in the slot), and
    how to make it if not as it came."""

    action: str
    outcome: Outcome
    handling: Handling | None


#: Nothing: the call does no harm.
WELL = Done("", Outcome.EAGER, None)


class Guard:
    """Decides by `on_overflow`: observe, raise or split. `splitters` by op, where it has one."""

    def __init__(
        self,
        recorder: Recorder,
        on_overflow: str = "observe",
        splitters: dict[str, Splitter] | None = None,
    ) -> None:
        self._recorder = recorder
        self._on_overflow = on_overflow
        self._splitters = splitters or {}

    def handle(
        self,
        op: str,
        kind: int,
        trouble: Trouble,
        native: NativeCall,
        args: tuple[Any, ...],
        named_by: int,
    ) -> Done:
        """Decide about a call that overflows or overruns (`kind`).

        `named_by` is the address of the workspace that the caller brought.
        """
        if self._on_overflow == "observe":
            if kind == OVERRUN:
                return Done("observed", Outcome.OVERRUN, None)
            return Done("observed", Outcome.OVERFLOW, self._expect_refusal(op))
        why_not = ""
        if self._on_overflow == "split":
            try:
                return Done("split", Outcome.SPLIT, self._split(op, trouble, native, args))
            except UnsplittableError as reason:
                why_not = str(reason)
        return Done("raised", Outcome.RAISED, self._raise(op, trouble, native, named_by, why_not))

    def while_tuning(
        self, op: str, trouble: Trouble, native: NativeCall, named_by: int
    ) -> Handling | None:
        """The tuner swallows refusals; only an overrun is worth keeping from it."""
        if self._on_overflow == "observe":
            return None
        if trouble.kind(native, self._recorder.layout) != OVERRUN:
            return None
        return self._raise(op, trouble, native, named_by, "")

    def _expect_refusal(self, op: str) -> Handling:
        recorder = self._recorder

        def expect_refusal(native: NativeFunction, args: tuple[Any, ...]) -> Foreign:
            try:
                result = native(*args)
            except Exception as error:
                recorder.native_failed(op, True, error)
                raise
            recorder.native_passed(op)
            return result

        return expect_refusal

    def _raise(
        self, op: str, trouble: Trouble, native: NativeCall, named_by: int, why_not: str
    ) -> Handling:
        number = self._recorder.workspace_number(named_by, op)
        error = WorkspaceOverflowError.of(
            op=op,
            workspace=self._recorder.workspace_name(number),
            call=trouble.call,
            native=native,
            layout=self._recorder.layout,
            planned=self._recorder.planned(number),
            why_not_split=why_not,
        )

        def refuse(_native: NativeFunction, _args: tuple[Any, ...]) -> Foreign:
            raise error

        return refuse

    def _split(
        self, op: str, trouble: Trouble, native: NativeCall, args: tuple[Any, ...]
    ) -> Handling:
        splitter = self._splitters.get(op)
        if splitter is None:
            raise UnsplittableError(_why_never(op))
        pieces = splitter.pieces(trouble.call, native, self._recorder.layout, args)

        recorder = self._recorder

        def split(native: NativeFunction, _args: tuple[Any, ...]) -> Foreign:
            try:
                return [native(*piece) for piece in pieces][-1]
            except Exception as error:
                recorder.native_failed(op, False, error)
                raise

        return split


def _why_never(op: str) -> str:
    if sizing.ENTRY_OF_OP[op] in sizing.XQA_OPS:
        # Each CTA of the GPU has its part of the scratch, however few the rows are.
        return "fewer rows take no less scratch in XQA"
    return f"{op} keeps its offsets on the device"
