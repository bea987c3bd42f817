"""The guard zone behind real kernels: what XQA writes past its workspace is caught."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from xqa_decode import MIB, Decode, buffer, read_slot

import ws_guard
from ws_guard.board import OVERRUN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from ws_guard import Plan, Probe, Provision

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("xqa_card")]
INTERVAL = 0.1
SMALL = 8 * MIB + 4096


@pytest.fixture
def plan() -> Plan:
    return ws_guard.plan(heads=64, max_num_batched_tokens=1024, flashinfer="0.6.15", sm_count=132)


@pytest.fixture(autouse=True)
def interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WS_GUARD_ZONE_INTERVAL", str(INTERVAL))


def overruns(board: Path) -> int:
    events = read_slot(board).events
    return sum(count for (_, kind, _), count in events.items() if kind == OVERRUN)


@pytest.mark.parametrize("handed_over", ["by the user", "by the probe"])
def test_an_overrun_is_caught_within_an_interval(
    probe_after: Callable[[], Probe], board: Path, plan: Plan, handed_over: str
) -> None:
    import torch

    probe = probe_after()
    made = probe.provision(plan, "cuda", workspace_bytes=SMALL, zone_bytes=MIB)
    workspace = made.workspace if handed_over == "by the user" else buffer(8 * MIB + 16)
    # 1 row of 32,768 tokens writes 294,912 bytes of scratch where there are 4,096.
    step = Decode(1, 32_768)
    time.sleep(2 * INTERVAL)
    certain = overruns(board)
    assert certain == 0
    step.run(workspace)
    torch.cuda.synchronize()
    called = time.monotonic()
    # Its scratch is known exactly, so it counted at the call already: once, whoever sees it.
    while not (zones := read_slot(board).document.get("destroyed_zones")):
        assert time.monotonic() < called + 10
        time.sleep(0.005)
    took = time.monotonic() - called
    print(f"caught after {took:.3f} s at an interval of {INTERVAL} s: {zones}")
    assert overruns(board) == 1
    # 290,816 bytes lie behind the workspace; the kernel does not write every one of them.
    assert 0 < zones[0]["destroyed_bytes"] <= 294_912 - 4096
    assert [call["batch"] for call in zones[0]["calls"]] == [1]


def test_a_sufficient_workspace_is_never_reported(probe: Probe, board: Path, plan: Plan) -> None:
    import torch

    made = roomy(probe, plan)
    step = Decode(1, 32_768)
    for _ in range(10_000):
        step.run(made.workspace)
    torch.cuda.synchronize()
    time.sleep(3 * INTERVAL)
    assert overruns(board) == 0
    assert "destroyed_zones" not in read_slot(board).document


def roomy(probe: Probe, plan: Plan) -> Provision:
    """A provision that no call here overruns, with a zone of 1 MiB."""
    return probe.provision(plan, "cuda", workspace_bytes=64 * MIB, zone_bytes=MIB)


def capture_products(left: torch.Tensor, right: torch.Tensor, count: int) -> None:
    """Capture and replay so many, in the mode in which an unsafe call of any thread is an error."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        for _ in range(count):
            torch.mm(left, right)
    graph.replay()


def test_no_capture_is_invalidated(
    monkeypatch: pytest.MonkeyPatch, probe_after: Callable[[], Probe], plan: Plan
) -> None:
    import torch

    monkeypatch.setenv("WS_GUARD_ZONE_INTERVAL", "0.01")
    probe = probe_after()
    made = roomy(probe, plan)
    left, right = torch.ones(2, 256, 256, device="cuda")
    torch.mm(left, right)
    started = time.monotonic()
    looks = made.zone.answer().number
    for _ in range(5_000):
        capture_products(left, right, 8)
    torch.cuda.synchronize()
    looks = made.zone.answer().number - looks
    print(f"5,000 captures in {time.monotonic() - started:.1f} s beside {looks} looks")
    assert looks > 100


def test_no_capture_is_invalidated_by_looks_during_it(
    monkeypatch: pytest.MonkeyPatch, probe_after: Callable[[], Probe], plan: Plan
) -> None:
    """A look may have begun right before a capture: even then it does no harm."""
    import torch

    monkeypatch.setenv("WS_GUARD_ZONE_INTERVAL", "3600")
    probe = probe_after()
    made = roomy(probe, plan)
    left, right = torch.ones(2, 256, 256, device="cuda")
    torch.mm(left, right)
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.0005):
            made.zone.look()
            made.zone.answer()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(500):
            capture_products(left, right, 200)
    finally:
        stop.set()
        looking.join()
    torch.cuda.synchronize()
    looks = made.zone.answer().number
    print(f"500 captures beside {looks} looks")
    assert looks > 0


def test_no_synchronisation_is_added(probe: Probe, plan: Plan) -> None:
    import torch

    made = roomy(probe, plan)
    step = Decode(16, 2048)
    for _ in range(8):
        step.run(made.workspace)
    torch.cuda.synchronize()

    def questions() -> dict[str, int]:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as trace:
            for _ in range(200):
                step.run(made.workspace)
                time.sleep(0.002)
        found: dict[str, int] = {}
        events: Any = trace.events()
        for event in events:
            if any(word in event.name for word in ("Synchronize", "Query", "WaitEvent", "Malloc")):
                found[event.name] = found.get(event.name, 0) + 1
        return found

    watched = questions()
    probe.uninstall()
    alone = questions()
    print(f"CUDA questions in 200 calls: with the probe {watched}, without {alone}")
    assert watched == alone
