"""How workspaces are used, where that is known to end badly: warnings, each with its consequence.

Looked at for the first calls of every shape, off the hot path. What is warned of comes from public
reports on FlashInfer, vLLM and SGLang: buffers that were shared or not zeroed.
"""

from __future__ import annotations

from ws_guard.sizing import ENTRY_OF_OP, XQA_OPS, XQA_SEMAPHORE_BYTES, Slab, head_slab

from .calls import Met
from .counters import CounterCheck
from .graphs import Graphs
from .recorder import Recorder

#: Buffers whose use is remembered; an engine has a handful.
_MAX_USES = 1024


class _Use:
    """What was seen of the buffer at one address."""

    def __init__(self) -> None:
        #: By op and what stands at the head of its carve.
        self.heads: dict[tuple[str, Slab], None] = {}
        self.streams: dict[object, None] = {}


class Hygiene:
    """Watches which ops and streams use a buffer, and whether its counter began at zero."""

    def __init__(self, recorder: Recorder, graphs: Graphs, counters: CounterCheck) -> None:
        self._recorder = recorder
        self._graphs = graphs
        self._counters = counters
        self._uses: dict[int, _Use] = {}
        graphs.on_capture.append(self._forgive_warm_ups)

    def see(self, op: str, met: Met, *, captured: bool) -> None:
        """Look at a call before it is made. `captured` ones run on the streams of their replays."""
        head = head_slab(ENTRY_OF_OP[op], met.lse, self._recorder.layout)
        use = self._uses.get(met.address)
        if use is None:
            if len(self._uses) >= _MAX_USES:
                return
            use = self._uses[met.address] = _Use()
            if ENTRY_OF_OP[op] not in XQA_OPS:  # whose views say themselves how large they are
                self._check_size(op, met)
        if head is not None and (op, head) not in use.heads:
            # While any thread captures, what a look allocates would end its capture.
            if head == "counter" and not self._graphs.capturing and not use.heads:
                self._check_counter(op, met)
            use.heads[op, head] = None
            self._judge_ops(op, met.address, use)
        stream = None if captured else self._graphs.stream_of(met.workspace)
        if stream is not None and stream not in use.streams:
            use.streams[stream] = None
            self._judge_streams(op, met.address, use)

    def _name(self, address: int, op: str) -> str:
        return self._recorder.workspace_name(self._recorder.workspace_number(address, op))

    def _judge_ops(self, op: str, address: int, use: _Use) -> None:
        clash = clashing(list(use.heads))
        if clash:
            self._recorder.set_warning(
                f"ops {address}",
                f"{self._name(address, op)}: {clash}; reports: hangs and wrong output. Give each "
                "its own workspace",
            )

    def _judge_streams(self, op: str, address: int, use: _Use) -> None:
        key = f"streams {address}"
        streams = [each for each in use.streams if each not in self._graphs.captured_streams]
        if len(streams) < 2:
            self._recorder.set_warning(key, "")
            return
        self._recorder.set_warning(
            key,
            f"{self._name(address, op)}: used from {len(streams)} streams; calls that overlap "
            "share counters and slabs; reports: hangs and wrong output. Give each stream its own "
            "workspace",
        )

    def _forgive_warm_ups(self) -> None:
        """What ran on a stream before that was captured has warmed the graph up, in order."""
        for address, use in self._uses.items():
            if len(use.streams) > 1 and use.heads:
                self._judge_streams(next(iter(use.heads))[0], address, use)

    def _check_size(self, op: str, met: Met) -> None:
        held = met.workspace.numel() * met.workspace.itemsize
        if held < met.bytes:
            self._recorder.set_warning(
                f"size {met.address}",
                f"{self._name(met.address, op)}: the call says {met.bytes:,} bytes, its buffer has "
                f"{held:,}: slabs carved behind its end overwrite other memory, and nobody checks. "
                "Pass the buffer that the size belongs to",
            )

    def _check_counter(self, op: str, met: Met) -> None:
        address = met.address

        def found_dirty() -> None:
            self._recorder.set_warning(
                f"counter {address}",
                f"{self._name(address, op)}: its counter was not zero at the first call seen; "
                "reports: reductions that never end (hangs) and wrong output. Allocate it zeroed, "
                "and let nothing else write there",
            )

        xqa = ENTRY_OF_OP[op] in XQA_OPS
        size = XQA_SEMAPHORE_BYTES if xqa else self._recorder.layout.counter_bytes
        self._counters.check(met.workspace, size, found_dirty)


def clashing(heads: list[tuple[str, Slab]]) -> str:
    """Why ops do not go together on one buffer, by what each has at its head; "" where they do."""
    for op, head in heads:
        for other, others_head in heads:
            if (ENTRY_OF_OP[op] in XQA_OPS) != (ENTRY_OF_OP[other] in XQA_OPS):
                return f"shared by {op} and {other}, whose counters do not know of each other"
            if head == "counter" and others_head != "counter":
                return (
                    f"{other} writes {others_head} where {op} keeps counters that must be zero "
                    "between calls"
                )
    return ""
