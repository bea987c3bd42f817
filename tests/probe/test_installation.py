"""`install()` and its undoing, in processes of their own where the import system matters."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import ws_guard
from ws_guard.board import SlotView
from ws_guard.probe import Probe, install, stand_by
from ws_guard.sizing import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ReadSlot = Callable[[], SlotView]
    ReadSlots = Callable[[], list[SlotView]]

ROOT = Path(__file__).parents[2]
LAUNCHER = Path("data/csrc/trtllm_fmha_kernel_launcher.cu")

needs_flashinfer = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None, reason="flashinfer is not installed"
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WS_GUARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


@pytest.fixture
def installed(board: str) -> Iterator[Callable[..., Probe]]:
    """`install()` on the board of the test, undone afterwards."""
    probes: list[Probe] = []

    def make(**arguments: Any) -> Probe:
        probes.append(install(**{"board": board, **arguments}))
        return probes[-1]

    yield make
    for probe in probes:
        probe.uninstall()


def python(program: str, *arguments: str, isolated: bool = False, **environ: str) -> list[str]:
    """Lines that a fresh process prints; `isolated` hides every installed package."""
    path = os.pathsep.join((environ.pop("PACKAGES", ""), str(ROOT))).strip(os.pathsep)
    done = subprocess.run(
        [sys.executable, *(["-S"] if isolated else []), "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


# -- arguments and settings ------------------------------------------------------------------------


def test_worker_is_on_the_board_before_its_first_call(
    installed: Callable[..., Probe], slot: ReadSlot
) -> None:
    installed(engine=3, rank=5)
    told = slot()
    assert (told.pid, told.alive, told.closed) == (os.getpid(), True, False)
    assert (told.document["engine"], told.document["rank"]) == ("3", "5")
    assert told.document["problems"] == []
    assert told.rows == []


def test_rank_comes_from_local_rank(
    installed: Callable[..., Probe], slot: ReadSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "6")
    installed()
    assert (slot().document["engine"], slot().document["rank"]) == ("0", "6")


def test_plan_is_published(installed: Callable[..., Probe], slot: ReadSlot) -> None:
    plan = ws_guard.plan(heads=64, tp=8, dcp=8, max_num_batched_tokens=16_384, flashinfer="0.6.14")
    installed(plan=plan)
    (planned,) = slot().document["planned"]
    assert planned["workspace"] == "ws0"
    # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB, as reported.
    assert planned["recommended_workspace_bytes"] == 413_138_944 + 2_148_532_224


def test_process_that_stands_by_is_on_the_board_once_it_attaches(
    monkeypatch: pytest.MonkeyPatch, board: str, slot: ReadSlot
) -> None:
    monkeypatch.setenv("WS_GUARD_BOARD", board)
    probe = stand_by()
    try:
        probe.describe(info={"engine_name": "vllm"})
        assert not Path(board).exists()
        probe.attach(engine="2", rank="3", info={"tp": "8"})
        told = slot()
        assert (told.document["engine"], told.document["rank"]) == ("2", "3")
        assert told.document["info"].items() >= {"engine_name": "vllm", "tp": "8"}.items()
        probe.attach(rank="4")
        assert slot().attached_ns == told.attached_ns
        assert slot().document["rank"] == "4"
        assert stand_by() is probe
    finally:
        probe.uninstall()
    assert not list(Path(board).iterdir())


def test_second_install_is_the_first(
    installed: Callable[..., Probe], slot: ReadSlot, caplog: pytest.LogCaptureFixture
) -> None:
    first = installed()
    assert install() is first
    assert caplog.messages == []
    assert install(engine="7") is first
    assert install(on_overflow="raise") is first
    (line, again) = caplog.messages
    assert line == again
    assert "already installed, arguments ignored" in line
    assert slot().document["engine"] == "0"


def test_uninstalled_probe_may_be_installed_again(
    installed: Callable[..., Probe], slots: ReadSlots
) -> None:
    first = installed()
    first.uninstall()
    assert slots() == []
    assert installed() is not first
    assert [each.alive for each in slots()] == [True]
    # The old one has nothing left to undo.
    first.uninstall()
    assert [each.alive for each in slots()] == [True]


@pytest.mark.parametrize("value", ["0", "false", "OFF"])
def test_disabled_by_setting(
    value: str, installed: Callable[..., Probe], board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WS_GUARD_ENABLED", value)
    finders = list(sys.meta_path)
    installed()
    assert not os.path.exists(board)
    assert sys.meta_path == finders


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("WS_GUARD_SIZING", "maybe", "use auto or off"),
        ("WS_GUARD_EXPECTED_WORKERS", "many", "use a whole number from 1 up"),
        ("WS_GUARD_ON_OVERFLOW", "explode", "use observe or raise or split"),
    ],
)
def test_bad_setting_is_a_problem_and_the_default_is_used(
    name: str,
    value: str,
    words: str,
    installed: Callable[..., Probe],
    slot: ReadSlot,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(name, value)
    installed()
    (problem,) = slot().document["problems"]
    assert words in problem
    assert [problem in line for line in caplog.messages] == [True]
    assert slot().document["info"].items() >= {"sizing": "auto", "on_overflow": "observe"}.items()


def test_log_handler_that_raises_does_not_stop_the_worker(
    installed: Callable[..., Probe], slot: ReadSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(record.getMessage())

    monkeypatch.setattr(logging.getLogger("ws_guard"), "handlers", [Handler()])
    monkeypatch.setenv("WS_GUARD_SIZING", "maybe")
    installed()
    assert len(slot().document["problems"]) == 1


def test_action_that_cannot_be_done_is_refused(board: str) -> None:
    allowed = "on_overflow is one of observe, raise, split, got 'explode'"
    with pytest.raises(InputError, match=allowed):
        install(on_overflow="explode", board=board)
    assert not os.path.exists(board)


@pytest.mark.parametrize("action", ["observe", "raise", "split"])
@pytest.mark.parametrize("by_setting", [True, False])
def test_action_is_told(
    by_setting: bool,
    action: str,
    installed: Callable[..., Probe],
    slot: ReadSlot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if by_setting:
        monkeypatch.setenv("WS_GUARD_ON_OVERFLOW", action)
        installed()
    else:
        monkeypatch.setenv("WS_GUARD_ON_OVERFLOW", "observe")
        installed(on_overflow=action)
    assert slot().document["info"]["on_overflow"] == action
    assert slot().document["problems"] == []


def test_unknown_group_leaves_the_worker_unobserved(
    installed: Callable[..., Probe],
    board: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("WS_GUARD_BOARD_GROUP", "no-such-group")
    installed()
    (line,) = caplog.messages
    assert "there is no such group" in line
    assert not os.path.exists(board)


# -- which FlashInfer ------------------------------------------------------------------------------

# Installs, and prints what the slot says and what the process has loaded.
PROGRAM = """
import json, os, sys
finders = list(sys.meta_path)
from ws_guard.board import Board, SlotReader, list_slots
from ws_guard.probe import install
probe = install(board=sys.argv[1])
loaded = set(sys.modules)
fd = os.open(sys.argv[1], os.O_RDONLY)
(name,) = list_slots(fd)[0]
document = SlotReader(name).read(Board(sys.argv[1]), fd).document
changed = sys.meta_path != finders
if sys.argv[2:]:
    import flashinfer.jit.core as core
    door = getattr(getattr(core, "JitSpec", None), "build_and_load", None)
    changed = hasattr(door, "__wrapped__")
probe.uninstall()
print(json.dumps({
    "contract": document["contract"], "reason": document["contract_reason"],
    "layout": document["layout"], "problems": document["problems"],
    "release": document["info"]["flashinfer_version"], "changed": changed,
    "heavy": sorted(loaded & {"torch", "flashinfer", "tvm_ffi", "numpy", "fastapi",
                              "prometheus_client", "typer", "rich", "uvicorn"}),
    "restored": sys.meta_path == finders,
}))
"""


@needs_flashinfer
def test_nothing_is_imported_early(board: str) -> None:
    (line,) = python(PROGRAM, board)
    told = json.loads(line)
    assert told["contract"] == "verified"
    assert told["heavy"] == []
    assert told["changed"]
    assert told["restored"]


def test_without_flashinfer_the_slot_says_so(board: str) -> None:
    line, log = python(PROGRAM, board, isolated=True)
    told = json.loads(line)
    assert "flashinfer is not installed, no call will be seen: install flashinfer-python" in log
    assert (told["contract"], told["layout"]) == ("not_installed", None)
    assert told["reason"] == "flashinfer is not installed"
    assert not told["changed"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the installed FlashInfer's launcher source, in a package that is nothing else."""
    found = importlib.util.find_spec("flashinfer")
    if found is None or found.origin is None:
        pytest.skip("flashinfer is not installed")
    copy = tmp_path / "packages" / "flashinfer"
    (copy / LAUNCHER).parent.mkdir(parents=True)
    shutil.copy(Path(found.origin).parent / LAUNCHER, copy / LAUNCHER)
    (copy / "jit").mkdir()
    for module in ("__init__.py", "jit/__init__.py"):
        (copy / module).touch()
    (copy / "jit" / "core.py").write_text(
        "class JitSpec:\n    name = 'fmha_gen'\n    def build_and_load(self):\n        return 1\n"
    )
    information = copy.parent / "flashinfer_python-0.6.14.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: flashinfer-python\nVersion: 0.6.14\n")
    return copy


def rewrite(package: Path, old: str, new: str) -> None:
    text = (package / LAUNCHER).read_text()
    assert old in text
    (package / LAUNCHER).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("trtllm_gen_softmax_workspace", "trtllm_gen_new_workspace", "unknown slab"),
        ("int64_t batch_size", "int64_t rows", "batch_size"),
        ("TVM_FFI_DLL_EXPORT_TYPED_FUNC", "EXPORT", "no exported function"),
    ],
)
def test_contract_that_is_not_understood_turns_the_probe_off(
    old: str, new: str, reason: str, package: Path, board: str
) -> None:
    rewrite(package, old, new)
    line, *log = python(PROGRAM, board, "import", isolated=True, PACKAGES=str(package.parent))
    told = json.loads(line)
    assert (told["contract"], told["layout"]) == ("mismatch", None)
    assert reason in told["reason"]
    assert not told["changed"]
    assert len(log) == 1
    assert "the probe stays off" in log[0]


def test_unchanged_copy_is_understood(package: Path, board: str) -> None:
    (line,) = python(PROGRAM, board, "import", isolated=True, PACKAGES=str(package.parent))
    told = json.loads(line)
    assert (told["contract"], told["release"]) == ("verified", "0.6.14")
    assert told["changed"]


def test_flashinfer_without_the_door_is_a_problem(package: Path, board: str) -> None:
    (package / "jit" / "core.py").write_text("")
    line, log = python(PROGRAM, board, "import", isolated=True, PACKAGES=str(package.parent))
    assert not json.loads(line)["changed"]
    assert "flashinfer.jit.core has no JitSpec.build_and_load" in log


def test_free_threaded_python_turns_the_probe_off(
    installed: Callable[..., Probe], slot: ReadSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    finders = list(sys.meta_path)
    installed()
    assert slot().document["contract"] == "mismatch"
    assert "free-threaded" in slot().document["contract_reason"]
    assert sys.meta_path == finders


@needs_flashinfer
def test_module_that_refuses_is_a_problem_and_stays_usable(
    installed: Callable[..., Probe],
    slot: ReadSlot,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = pytest.importorskip("flashinfer.jit.core")

    class Sealed:
        def trtllm_paged_attention_decode(self) -> int:
            return 7

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"{name} is read-only")

    native, spec = Sealed(), SimpleNamespace(name="fmha_gen")
    monkeypatch.setattr(core.JitSpec, "build_and_load", lambda _spec: native)
    probe = installed()
    assert [core.JitSpec.build_and_load(spec) for _ in range(3)] == [native] * 3
    assert native.trtllm_paged_attention_decode() == 7
    (problem,) = slot().document["problems"]
    assert problem.endswith("while instrumenting: trtllm_paged_attention_decode is read-only")
    assert len(caplog.messages) == 1
    probe.uninstall()


# -- processes -------------------------------------------------------------------------------------


def test_slot_is_gone_after_a_clean_exit(board: str, package: Path) -> None:
    program = "import sys; from ws_guard.probe import install; install(board=sys.argv[1])"
    assert python(program, board, isolated=True, PACKAGES=str(package.parent)) == []
    assert os.listdir(board) == []


def test_child_forked_without_multiprocessing(board: str, package: Path) -> None:
    """A plain `os.fork` child that ends by `sys.exit` runs atexit, with a slot of its own."""
    program = """
import os, sys
from ws_guard.probe import install
probe = install(board=sys.argv[1])
pid = os.fork()
if pid:
    print(os.waitpid(pid, 0)[1], len(os.listdir(sys.argv[1])), flush=True)
    sys.exit()
before = len(os.listdir(sys.argv[1]))
probe._recorder.attach_if_pending()
print(before, len(os.listdir(sys.argv[1])), flush=True)
"""
    told = python(program, board, isolated=True, PACKAGES=str(package.parent))
    assert told == ["1 2", "0 1"]
    assert os.listdir(board) == []


def test_spawned_workers_have_slots_of_their_own(tmp_path: Path, board: str) -> None:
    script = tmp_path / "spawn.py"
    script.write_text("""
import multiprocessing, os, sys
from ws_guard.probe import install

def work(path, pipe):
    install(board=path, rank=pipe.recv())
    pipe.send(os.getpid())
    pipe.recv()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    install(board=sys.argv[1])
    ends, workers = [], []
    for rank in (1, 2):
        ours, theirs = context.Pipe()
        workers.append(context.Process(target=work, args=(sys.argv[1], theirs)))
        workers[-1].start()
        ours.send(rank)
        ends.append(ours)
    pids = {os.getpid(), *(end.recv() for end in ends)}
    print({int(name.split(".")[0]) for name in os.listdir(sys.argv[1])} == pids)
    for end, worker in zip(ends, workers):
        end.send(None)
        worker.join()
    print([worker.exitcode for worker in workers], len(os.listdir(sys.argv[1])))
""")
    program = f"import runpy, sys; sys.argv = [{str(script)!r}, sys.argv[1]]; "
    program += f"runpy.run_path({str(script)!r}, run_name='__main__')"
    assert python(program, board) == ["True", "[0, 0] 1"]
    assert os.listdir(board) == []


def test_worker_that_is_killed_leaves_a_dead_slot(board: str, slot: ReadSlot) -> None:
    program = (
        "import sys; from ws_guard.probe import install; install(board=sys.argv[1]);"
        "print('attached', flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-S", "-c", program, board],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"attached\n"
        assert slot().alive
        worker.kill()
    deadline = time.monotonic() + 60
    while slot().alive and time.monotonic() < deadline:
        pass
    assert (slot().alive, slot().closed, slot().pid) == (False, False, worker.pid)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"plan": {"fits": True}}, "plan is what ws_guard.plan"),
        ({"board": b"/tmp/x"}, "board is the path of a directory, got bytes"),
    ],
)
def test_arguments_that_cannot_be_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ws_guard.InputError, match=words):
        ws_guard.install(**arguments)
