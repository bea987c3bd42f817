"""The probe under FlashInfer's own Python and its own launcher."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flashinfer_calls import PUBLIC_CALLS, Shape, workspace
from probe_calls import MIB, Refused, Report, Seen, calls_by_mode, error_of, probed, report, slots
from public_calls import cases

from ws_guard.board import OVERFLOW, OVERRUN, Outcome, SlotView
from ws_guard.launcher import Recorder, on_cpu
from ws_guard.probe import install
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DECODE = "trtllm_paged_attention_decode"
FORK = multiprocessing.get_context("fork")
RELEASES = ("installed", "0.6.15.post1", "0.7.4")


@pytest.fixture
def board(tmp_path: Path) -> str:
    return str(tmp_path / "board")


@pytest.fixture(scope="module", params=RELEASES)
def told(
    request: pytest.FixtureRequest,
    native_library: Path,
    run_under: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Report:
    """What `probe_calls.py` reports under one release."""
    assert native_library.exists()
    path = str(tmp_path_factory.mktemp("probe") / "board")
    if request.param == "installed":
        found = json.loads(json.dumps(report(path)._asdict()))
    else:
        out = run_under(request.param, str(HERE / "probe_calls.py"), path)
        found = json.loads(out.splitlines()[-1])
        assert found["release"] == request.param
    found["seen"] = [Seen(*each) for each in found["seen"]]
    found["refused"] = Refused(*found["refused"])
    return Report(**found)


# -- every public call, release by release ---------------------------------------------------------


def test_every_public_call_is_told_as_it_was_launched(told: Report) -> None:
    assert [each.told for each in told.seen] == [each.made for each in told.seen]
    assert {each.call for each in told.seen} == set(PUBLIC_CALLS)
    # All cases in an aligned workspace, those of no wrapper in a misaligned one as well.
    free = [name for name, _ in cases() if "wrapper" not in name]
    assert len(told.seen) == len(cases()) + len(free) == 28 + 22
    assert {each.made["address_mod_16"] for each in told.seen} == {0, 8}
    assert (told.contract, told.probe_errors, told.problems) == ("verified", 0, [])


def test_slabs_of_vllms_call_stand_where_arithmetic_puts_them(told: Report) -> None:
    asked = {"batch": 24, "heads": 32, "q_len": 1, "lse": True, "address_mod_16": 0}.items()
    (seen,) = (s for s in told.seen if s.call == "sparse_mla" and s.made.items() >= asked)
    # 8 bytes per head and row, rows rounded up to 256 query tokens; a guard of 1 MiB.
    stats = 8 * 32 * 24 * 256 + MIB
    counter = 8192 * 256 * 4
    if told.layout == "B":
        offsets = {"counter": 0, "softmax_stats": counter, "scratch": counter + stats}
    else:
        offsets = {"softmax_stats": 0, "scratch": stats}
    assert seen.told["offsets"] == offsets


def test_refusal_passes_unchanged_and_is_counted_once(told: Report) -> None:
    refused = told.refused
    # 8 bytes x 64 heads x 12,288 rows x 256 query tokens, a guard of 1 MiB.
    assert f"size {8 * 64 * 12_288 * 256 + MIB} and alignment 16" in refused.under_probe
    assert refused.under_probe == refused.bare
    assert refused.frames == refused.bare_frames
    assert "tvm_ffi" in refused.frames[-1]
    assert refused.events == [[DECODE, OVERFLOW, "observed", 1]]
    assert refused.stamped
    assert refused.last_outcome == Outcome.OVERFLOW


def test_overrun_counts_where_the_kv_is_long_enough(told: Report) -> None:
    assert told.short_kv == []
    assert told.long_kv == [[DECODE, OVERRUN, "observed", 1]]


def test_autotuner_is_no_traffic(told: Report) -> None:
    # Two tuning calls, the second refused; one call of the first shape afterwards.
    assert told.tuning == {"counts": [[0, 1], [1, 1]], "events": [], "errors": 0}


def test_other_backends_leave_no_trace(told: Report) -> None:
    (built,) = told.elsewhere["built"]
    assert built.startswith("batch_decode_with_kv_cache")
    assert "MissingJITCacheError" in told.elsewhere["refused"][1]
    assert len(told.elsewhere["refused"]) == 4
    assert told.elsewhere["rows"] == 0


def test_uninstall_restores_the_door(told: Report) -> None:
    assert told.restored


# -- installing and uninstalling -------------------------------------------------------------------


def run_python(program: str, **environ: str) -> str:
    """What a fresh process prints; it finds ws_guard and the helpers beside this file."""
    path = os.pathsep.join((str(ROOT), str(HERE)))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_installed_before_flashinfer_is_imported(native_library: Path, board: str) -> None:
    program = """
import os, sys
from pathlib import Path
from ws_guard.probe import install
finders = list(sys.meta_path)
probe = install(board=sys.argv[1] if sys.argv[1:] else os.environ["BOARD"])
print(sorted({"torch", "flashinfer", "tvm_ffi"} & set(sys.modules)))
from probe_calls import *
with on_cpu(Path(os.environ["LIBRARY"])):
    PUBLIC_CALLS["sparse_mla"].build(Shape(5, lse=True), workspace(64 * MIB))()
print(sys.meta_path == finders)
import flashinfer.jit.core as core
print([row.shape.batch for row in slots(os.environ["BOARD"])[0].rows])
print("exec_module" in vars(core.__spec__.loader))
print(sorted({"fastapi", "prometheus_client", "typer", "rich"} & set(sys.modules)))
"""
    out = run_python(program, BOARD=board, LIBRARY=str(native_library))
    assert out.splitlines() == ["[]", "True", "[5]", "False", "[]"]
    # The process ended in good order: its slot is gone.
    assert os.listdir(board) == []


def native_modules() -> list[Any]:
    """Every native module that this process has loaded."""
    import tvm_ffi

    gc.collect()
    return [found for found in gc.get_objects() if type(found) is tvm_ffi.Module]


@pytest.mark.usefixtures("on_cpu")
def test_late_install_sees_every_module_that_is_loaded(board: str) -> None:
    calls = [
        PUBLIC_CALLS[name].build(Shape(4, 32), workspace(64 * MIB))
        for name in ("sparse_mla", "decode", "context", "decode_wrapper", "prefill_wrapper")
    ]
    for call in calls:
        call()
    # mla, decode and prefill keep a module each, and the two wrappers one each to themselves.
    assert len(native_modules()) >= 5
    with probed(board):
        for call in calls:
            call()
        (slot,) = slots(board)
        assert len(slot.calls) == len(calls)
        assert slot.document["problems"] == []


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("keep", ["attribute", "closure", "partial"])
def test_function_taken_before_install_is_reported(
    keep: str, board: str, caplog: pytest.LogCaptureFixture
) -> None:
    PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))()
    holder = hold(keep)
    with caplog.at_level(logging.WARNING, "ws_guard"), probed(board):
        (slot,) = slots(board)
    assert holder is not None
    (problem,) = slot.document["problems"]
    assert problem.startswith("installed too late for 1 objects that hold native functions")
    assert [problem in line for line in caplog.messages] == [True]


@pytest.mark.usefixtures("on_cpu")
def test_garbage_that_holds_a_function_is_not_reported(board: str) -> None:
    PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))()
    gc.disable()
    try:
        backend: Any = hold("attribute")
        backend.itself = backend
        del backend
        with probed(board):
            assert slots(board)[0].document["problems"] == []
    finally:
        gc.enable()


def hold(how: str) -> object:
    """Something that holds a native function, as FlashInfer's own backends do."""
    function = getattr(native_decode_module(), DECODE)
    if how == "attribute":
        backend = type("Backend", (), {})()
        backend.run = function
        return backend
    if how == "closure":
        return lambda: function()
    return functools.partial(function)


@pytest.mark.usefixtures("on_cpu")
def test_uninstall_restores_the_identical_objects(
    board: str, caplog: pytest.LogCaptureFixture
) -> None:
    import flashinfer.jit.core as core

    for name in ("decode", "context", "ragged", "dsv4"):
        PUBLIC_CALLS[name].build(Shape(4, 32), workspace(64 * MIB))()
    modules = native_modules()
    before = [dict(vars(module)) for module in modules]
    door, finders = vars(core.JitSpec)["build_and_load"], list(sys.meta_path)
    probe = install(board=board)
    assert vars(core.JitSpec)["build_and_load"] is not door
    assert [vars(module) for module in modules] != before
    for _ in range(2):
        probe.uninstall()
        assert vars(core.JitSpec)["build_and_load"] is door
        assert sys.meta_path == finders
        for module, functions in zip(modules, before, strict=True):
            assert all(vars(module)[name] is function for name, function in functions.items())
    assert os.listdir(board) == []
    assert not any("patched again" in line for line in caplog.messages)


@pytest.mark.usefixtures("on_cpu")
def test_other_specs_are_not_touched(
    native_library: Path, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of another name is handed on as it came, though it has the same functions."""
    import flashinfer.jit.core as core
    import flashinfer.jit.env as env

    spec = core.gen_jit_spec("fmha_gen_other", [])
    monkeypatch.setattr(env, "FLASHINFER_AOT_DIR", tmp_path)
    (tmp_path / spec.name).mkdir()
    (tmp_path / spec.name / f"{spec.name}.so").symlink_to(native_library)
    with probed(board):
        assert vars(spec.build_and_load()).get(DECODE) is None


# -- what never happens ----------------------------------------------------------------------------


@pytest.mark.usefixtures("on_cpu")
def test_results_are_those_without_the_probe(board: str) -> None:
    call = PUBLIC_CALLS["sparse_mla"].build(Shape(4, 32, lse=True), workspace(64 * MIB))
    bare = call()
    with probed(board):
        probed_result = call()
    assert [(type(r), r.shape, r.dtype, r.stride()) for r in probed_result] == [
        (type(r), r.shape, r.dtype, r.stride()) for r in bare
    ]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("size", [64 * MIB, MIB], ids=["fits", "refused"])
def test_no_tensor_is_kept_alive(size: int, board: str) -> None:
    buffer = workspace(size)
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32, lse=True), buffer)
    tensors = [weakref.ref(buffer), weakref.ref(call.keywords["query"])]
    with probed(board):
        with contextlib.suppress(RuntimeError):
            call()
        (slot,) = slots(board)
        assert len(slot.calls) == 1
        del buffer, call
        assert [tensor() for tensor in tensors] == [None, None]


@pytest.mark.usefixtures("on_cpu")
def test_unusable_board_leaves_calls_alone(caplog: pytest.LogCaptureFixture) -> None:
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32, lse=True), workspace(MIB))
    with caplog.at_level(logging.WARNING, "ws_guard"), probed("/proc/no/board"):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="trtllm_gen_"):
                call()
    # The buffer of the test is not zeroed, and the probe says that as well.
    assert sum("not observed: board /proc/no/board" in line for line in caplog.messages) == 1


@pytest.mark.usefixtures("on_cpu")
def test_board_removed_under_a_worker_leaves_calls_alone(board: str) -> None:
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))
    with probed(board):
        call()
        for name in os.listdir(board):
            os.unlink(os.path.join(board, name))
        os.rmdir(board)
        call()


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("action", ["observe", "raise", "split"])
def test_dynamo_does_not_look_into_the_probe(action: str, board: str) -> None:
    """Compiled code breaks at the probe as it does at the native function, and there alone."""
    PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))()
    bare = compiled_steps()
    with probed(board, action):
        assert compiled_steps() == bare
        (slot,) = slots(board)
        # One call to learn its arguments, three in the compiled step.
        assert (calls_by_mode(slot)["eager"], slot.probe_errors) == (3, 0)


def compiled_steps() -> tuple[int, int]:
    """(frames compiled, graph breaks) of a step with the native decode in it, made three times."""
    import torch
    import torch._dynamo.utils as dynamo

    call = PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))
    arguments, op = native_arguments(call), getattr(native_decode_module(), DECODE)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        op(*arguments)
        return y * 2

    torch._dynamo.reset()
    dynamo.counters.clear()
    compiled = torch.compile(step, backend="eager")
    for n in range(3):
        assert compiled(torch.full((2,), float(n))).tolist() == [2.0 * (n + 1)] * 2
    breaks = sum(dynamo.counters["graph_break"].values())
    return dynamo.counters["frames"]["total"], breaks


def native_decode_module() -> Any:
    from flashinfer.decode import get_trtllm_gen_fmha_module

    return get_trtllm_gen_fmha_module()


def native_arguments(call: Callable[[], Any]) -> tuple[Any, ...]:
    """The arguments with which a public call reaches the native decode."""
    module = native_decode_module()
    probe, caught = getattr(module, DECODE), []
    setattr(module, DECODE, lambda *args: caught.append(args))
    call()
    setattr(module, DECODE, probe)
    return caught[0]


@pytest.mark.usefixtures("on_cpu")
def test_install_and_uninstall_under_running_threads(tmp_path: Path) -> None:
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))
    refused = PUBLIC_CALLS["decode"].build(Shape(4, 32, lse=True), workspace(MIB))
    call()
    done = threading.Event()

    def work() -> int:
        rounds = 0
        while not done.is_set():
            call()
            assert "trtllm_gen_" in repr(error_of(refused))
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(work) for _ in range(2)]
        try:
            for n in range(5):
                board = str(tmp_path / f"board{n}")
                with probed(board):
                    while not slots(board)[0].calls:
                        assert not any(worker.done() for worker in workers)
                    assert slots(board)[0].probe_errors == 0
        finally:
            done.set()
        assert all(worker.result() for worker in workers)


# -- processes -------------------------------------------------------------------------------------


@pytest.fixture
def attached(native_library: Path, board: str) -> Iterator[Recorder]:
    """This process is a worker, before it forks others."""
    with on_cpu(native_library) as recorder, probed(board):
        yield recorder


def by_pid(board: str) -> dict[int, SlotView]:
    return {slot.pid: slot for slot in slots(board)}


def work(orders: Connection, call: Callable[[], Any]) -> None:
    """A forked worker: one call for every order, until there are no more."""
    while orders.recv():
        with contextlib.suppress(RuntimeError):
            call()
        orders.send(os.getpid())


@pytest.mark.usefixtures("attached")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_worker_opens_its_own_slot_at_its_first_call(board: str) -> None:
    call = PUBLIC_CALLS["decode"].build(Shape(4, 32), workspace(64 * MIB))
    call()
    orders, theirs = multiprocessing.Pipe()
    child = FORK.Process(target=work, args=(theirs, call), daemon=True)
    child.start()
    assert child.pid is not None
    # Forked, and no call yet: the parent's slot alone, alive and untouched.
    assert {pid: slot.alive for pid, slot in by_pid(board).items()} == {os.getpid(): True}
    for count in (1, 2):
        orders.send(True)
        orders.recv()
        found = by_pid(board)
        assert calls_by_mode(found[child.pid])["eager"] == count
        assert calls_by_mode(found[os.getpid()])["eager"] == 1
        assert found[child.pid].alive
    call()
    assert calls_by_mode(by_pid(board)[os.getpid()])["eager"] == 2
    # A clean exit takes the child's slot away, and leaves the parent's.
    orders.send(False)
    child.join(timeout=60)
    assert child.exitcode == 0
    assert {pid: slot.alive for pid, slot in by_pid(board).items()} == {os.getpid(): True}


def die_of_overflow(fits: Callable[[], Any], refused: Callable[[], Any]) -> None:
    fits()
    try:
        refused()
    except RuntimeError:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("attached")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_worker_killed_at_once_leaves_its_overflow_behind(board: str) -> None:
    buffer = workspace(DEFAULT_WORKSPACE_BYTES)
    fits, refused = (
        PUBLIC_CALLS["sparse_mla"].build(Shape(batch, lse=True), buffer) for batch in (24, 12_288)
    )
    child = FORK.Process(target=die_of_overflow, args=(fits, refused), daemon=True)
    child.start()
    child.join(timeout=60)
    assert child.exitcode == -signal.SIGKILL
    assert child.pid is not None
    dead = by_pid(board)[child.pid]
    assert (dead.alive, dead.closed) == (False, False)
    assert [(call.shape.batch, call.outcome) for call in dead.calls] == [
        (24, Outcome.EAGER),
        (12_288, Outcome.OVERFLOW),
    ]
    assert [(kind, count) for (_, kind, _), count in dead.events.items()] == [(OVERFLOW, 1)]
    assert dead.attached_ns < dead.last_overflow_ns
    # Nothing of it is the parent's.
    assert by_pid(board)[os.getpid()].alive
    assert by_pid(board)[os.getpid()].events == {}
