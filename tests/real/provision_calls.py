"""The reported step on a workspace of ours, under the real launcher; and what upstream hands over.

Runs under any interpreter that has FlashInfer, without pytest: `python provision_calls.py BOARD`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from flashinfer_calls import MIB, PUBLIC_CALLS, Shape
from guard_calls import HEADS, step
from plain import plain
from probed_board import calls_by_mode, events, probed, slots

import ws_guard
from ws_guard.board import Board
from ws_guard.exporter.snapshot import BoardWatch
from ws_guard.launcher import Recorder, build, installed_flashinfer_root, on_cpu
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from ws_guard import Plan, Probe, Provision

ROWS = 12_288


def zeroed(size: int = DEFAULT_WORKSPACE_BYTES, **_: Any) -> torch.Tensor:
    """A workspace as FlashInfer asks for it; the pages that nobody writes take no memory.

    Torch's own zeros on a CPU are written one by one.
    """
    import numpy as np
    import torch

    return torch.from_numpy(np.zeros(size, dtype=np.uint8))


@contextlib.contextmanager
def untouched_zeros() -> Iterator[None]:
    """`torch.zeros` as `zeroed` has it: a provision of 2.5 GB takes next to no memory."""
    import torch

    original = torch.zeros
    torch.zeros = zeroed
    try:
        yield
    finally:
        torch.zeros = original


def provision(probe: Probe, plan: Plan, size: int | None = None) -> Provision:
    with untouched_zeros():
        return probe.provision(plan, "cpu", workspace_bytes=size)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Launches:
    """What reached the kernel since it was last asked."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        last = recorder.last()
        self._seen = last.ordinal if last else 0

    def of(self, call: Callable[[], Any], made: Provision | None) -> dict[str, Any]:
        """Make a call: its error, how many launches, the last batch, and slabs by offset."""
        error = ""
        try:
            call()
        except RuntimeError as raised:
            error = f"{type(raised).__name__}: {raised}"
        last = self._recorder.last()
        ordinal = last.ordinal if last else 0
        launches, self._seen = ordinal - self._seen, ordinal
        told = {"error": error, "launches": launches, "batch": 0, "offsets": {}}
        if last is None or not launches:
            return told
        told["batch"] = last.batch
        if made is not None:
            slabs = ("counter", "softmax_stats", "scratch")
            offsets = {slab: getattr(last, slab) - made.address for slab in slabs}
            told["offsets"] = {s: at for s, at in offsets.items() if 0 <= at <= made.bytes}
        return told


def tell(path: str) -> dict[str, Any]:
    """The slot, and the workspaces as the exporter tells them."""
    (slot,) = slots(path)
    (one,) = BoardWatch(Board(path)).read().slots
    sites = one.worker.workspaces
    return {
        "events": events(path),
        "counts": calls_by_mode(slot),
        "names": slot.document["workspaces"],
        "warnings": slot.document.get("warnings", []),
        "peaks": {
            site.workspace: [site.peak.batch, site.peak.need_bytes, site.peak.margin_bytes]
            for site in sites
            if site.peak is not None
        },
        "sizes": {site.workspace: site.workspace_bytes for site in sites},
        "probe_errors": slot.probe_errors,
    }


def observed(path: str, plan: Plan, launches: Launches) -> dict[str, Any]:
    """The step of two callers, before and after each has a provision."""
    shape, own, others = Shape(ROWS, HEADS, lse=True), zeroed(), zeroed()
    with probed(path):
        told: dict[str, Any] = {"without": launches.of(step(shape, own), None)}
    with probed(path) as probe:
        before = resident_bytes()
        made = provision(probe, plan)
        told["resident"] = resident_bytes() - before
        told["bytes"] = made.bytes
        told["with"] = [launches.of(step(shape, own), made) for _ in range(3)]
        told["second"] = launches.of(step(shape, others), None)
        again = provision(probe, plan)
        told["second provision"] = launches.of(step(shape, others), again)
        told["first again"] = launches.of(step(shape, own), made)
        told["observed"] = tell(path)
    return told


def too_small(path: str, plan: Plan, launches: Launches, action: str) -> dict[str, Any]:
    """The step on a provision that does not hold it either."""
    with probed(path, action) as probe:
        made = provision(probe, plan, 1024 * MIB)
        done = launches.of(step(Shape(ROWS, HEADS, lse=True), zeroed()), made)
        return {**done, **tell(path)}


def upstream(path: str, name: str) -> dict[str, Any]:
    """What the slot tells of one public call."""
    with probed(path):
        PUBLIC_CALLS[name].build(Shape(4, HEADS), zeroed())()
        return tell(path)


def report(path: str) -> dict[str, Any]:
    """All of it, for the FlashInfer of this interpreter."""
    import flashinfer

    plan = ws_guard.plan(
        heads=64,
        tp=8,
        dcp=8,
        max_num_batched_tokens=16_384,
        flashinfer=flashinfer.__version__,
        sm_count=148,
    )
    with on_cpu(build(installed_flashinfer_root())) as recorder:
        launches = Launches(recorder)
        return {
            "release": flashinfer.__version__,
            **observed(path, plan, launches),
            **{action: too_small(path, plan, launches, action) for action in ("raise", "split")},
            "prefill wrapper": upstream(path, "prefill_wrapper"),
            "context": upstream(path, "context"),
        }


if __name__ == "__main__":
    print(json.dumps(plain(report(sys.argv[1]))))
