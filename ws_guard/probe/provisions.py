"""Workspaces that ws_guard allocates: as large as planned, zeroed, with a guard zone behind each.

`provision` allocates one. The probe then hands it to the native calls of the first caller whose own
workspace is smaller: a caller is a buffer and the op that uses it, and keeps what it was given. No
two callers share one, no caller is given one after a graph was captured with its own, and a caller
that comes from another stream as well goes on with its own there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ws_guard.board import MAX_WORKSPACES, OVERRUN, Outcome
from ws_guard.foreign import Device
from ws_guard.sizing import InputError, Plan
from ws_guard.sizing.errors import whole
from ws_guard.sizing.slabs import round_up

from .calls import Met
from .graphs import Graphs
from .recorder import Recorder
from .ticker import Ticker
from .zone import LINE_BYTES, Zone, paint

_WORD = 8
_KEPT_REPORTS = 4


class Provision(NamedTuple):
    """A workspace of ws_guard's on a device: `workspace` is a tensor of uint8, zeroed.

    It may be handed to FlashInfer as it is, or left to the probe to put in a smaller one's place.
    """

    workspace: Any
    zone: Zone
    device: Any

    @property
    def address(self) -> int:
        """Where the workspace begins."""
        return int(self.workspace.data_ptr())

    @property
    def bytes(self) -> int:
        """Size of the workspace, in bytes."""
        return int(self.workspace.numel())


def allocate(plan: Plan, device: Device, workspace_bytes: int | None, zone_bytes: int) -> Provision:
    """Allocate what `plan` asks for (or `workspace_bytes`) and a zone of `zone_bytes` behind it.

    Waits for the GPU: from then on the memory is zero for every stream. Raises `InputError` for
    arguments that cannot be, torch's own errors where the memory cannot be had.
    """
    if not isinstance(plan, Plan):
        raise InputError(f"plan is what ws_guard.plan() gave, got {type(plan).__name__}")
    size = plan.workspace_bytes if plan.fits else plan.recommended_workspace_bytes
    if workspace_bytes is not None:
        size = whole("workspace_bytes", workspace_bytes, least=1)
    zone_bytes = whole("zone_bytes", zone_bytes, least=1)
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise InputError("provision needs torch: import it first")
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"device is what torch.device takes, got {device!r}: {why}") from None
    # The zone begins with the first whole word behind the workspace, and ends with a whole line.
    start = round_up(size, _WORD)
    block = torch.zeros(start + round_up(zone_bytes, LINE_BYTES), dtype=torch.uint8, device=device)
    if block.is_cuda:
        torch.cuda.synchronize(device)
    zone = paint(block[start:].view(torch.int64))
    return Provision(block[:size], zone, block.device)


class _Caller(NamedTuple):
    """Who was given a provision, and the stream that it calls from (None: none seen yet)."""

    provision: Provision
    stream: object


class Provisions:
    """Every workspace of ws_guard's in this process, and who was given which."""

    def __init__(
        self,
        recorder: Recorder,
        graphs: Graphs,
        ticker: Ticker,
        report: Callable[[str], None],
    ) -> None:
        self._recorder = recorder
        self._graphs = graphs
        self._ticker = ticker
        self._report = report
        self._all: list[Provision] = []
        self._free: list[Provision] = []
        self._callers: dict[tuple[int, str], _Caller] = {}
        self._captured: set[int] = set()
        self._reports: list[dict[str, Any]] = []
        #: Called when one is added: callers that were known are to be looked at again.
        self.on_new: list[Callable[[], None]] = []

    def add(self, provision: Provision) -> None:
        """Offer a provision to the next caller, and have its zone looked at."""
        with self._recorder.lock:
            self._all.append(provision)
            self._free.append(provision)
            for told in self.on_new:
                told()
        self._ticker.add(_Watch(provision, self._graphs, self._destroyed).tick)

    def instead(self, op: str, met: Met, *, captured: bool) -> Provision | None:
        """The provision that a call is to use instead of its own workspace, or None.

        `captured` calls run on the stream of their replays, whichever captures them.
        """
        address = met.address
        if any(each.address == address for each in self._all):
            return None
        caller = self._callers.get((address, op)) or self._welcome(op, met)
        if caller is None:
            if captured:
                self._captured.add(address)
            return None
        if caller.provision.bytes <= met.bytes:
            return None  # another buffer stands there by now, and has what it needs
        stream = None if captured else self._graphs.stream_of(met.workspace)
        if stream is None or stream == caller.stream:
            return caller.provision
        if caller.stream is None:
            self._callers[address, op] = caller._replace(stream=stream)
            return caller.provision
        if stream not in self._graphs.captured_streams:
            self._report(f"{op} calls from a second stream: there it keeps its own workspace")
        return None

    def serves(self, op: str, address: int) -> bool:
        """Whether a caller was given a provision."""
        return (address, op) in self._callers

    def _welcome(self, op: str, met: Met) -> _Caller | None:
        """A caller that is new: what it is given, if anything."""
        address, workspace = met.address, met.workspace
        fitting = [
            each
            for each in self._free
            if each.bytes > met.bytes and each.device == workspace.device
        ]
        if not fitting:
            return None
        if address in self._captured:
            self._report(f"{op} keeps its own workspace: a graph was captured with it already")
            return None
        # By identity: `remove` would compare tensors, which asks CUDA.
        self._free = [each for each in self._free if each is not fitting[0]]
        self._callers[address, op] = caller = _Caller(fitting[0], None)
        return caller

    def _destroyed(self, provision: Provision, found: int, since: float, until: float) -> None:
        """A zone was destroyed: count an overrun, and tell the calls that may have done it."""
        recorder = self._recorder
        with recorder.lock:
            users = [at for (at, _), each in self._callers.items() if each.provision is provision]
            numbers = [
                number
                for address in (provision.address, *users)
                for number in recorder.workspaces_at(address)
            ]
            if users and not numbers:
                numbers = [MAX_WORKSPACES]  # its caller came too late for a name of its own
            runs = [run for run in recorder.slot.calls_since(since) if run[0].workspace in numbers]
            calls = [shape for shape, _ in runs]
            # One that was certain at its call was counted then.
            if not any(outcome == Outcome.OVERRUN for _, outcome in runs):
                # Where nobody is known to have called, the first op stands for who wrote there.
                op = recorder.op_name(calls[-1].op if calls else 0)
                recorder.add_event(op, OVERRUN, "observed")
            name = recorder.workspace_name(numbers[-1]) if numbers else "provision"
            shift = time.time() - time.monotonic()
            self._reports.append(
                {
                    "workspace": name,
                    "destroyed_bytes": found,
                    "since": since + shift,
                    "until": until + shift,
                    "calls": [recorder.tell(shape) for shape in calls[-16:]],
                }
            )
            recorder.describe(destroyed_zones=self._reports[-_KEPT_REPORTS:])
            recorder.warn(
                f"{name}: {found:,} bytes behind the workspace were overwritten in the last "
                f"{until - since:.1f} s: an overrun"
            )


class _Watch:
    """Looks at one zone at every tick, except while a graph is captured."""

    def __init__(
        self,
        provision: Provision,
        graphs: Graphs,
        destroyed: Callable[[Provision, int, float, float], None],
    ) -> None:
        self._provision = provision
        self._graphs = graphs
        self._destroyed = destroyed
        self._asked = self._good = time.monotonic()
        self._answered = provision.zone.answer().number
        self._looks = self._answered

    def tick(self) -> bool:
        """Take in the answer to the last look; once it has come, have the next one made."""
        zone = self._provision.zone
        number, found = zone.answer()
        if number != self._answered:
            self._answered = number
            if found:
                self._destroyed(self._provision, found, self._good, time.monotonic())
                zone.repaint()
            self._good = self._asked
        if self._answered == self._looks and not self._graphs.capturing:
            self._asked = time.monotonic()
            self._looks += 1
            zone.look()
        return True
