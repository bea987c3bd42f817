"""Which FlashInfer the probe finds: as it knows it, changed, without a door, or none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from fresh_python import python
from slot_views import ReadSlot

from ws_guard import Probe

if TYPE_CHECKING:
    from collections.abc import Callable

    Install = Callable[..., Probe]

LAUNCHER = Path("data/csrc/trtllm_fmha_kernel_launcher.cu")

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


@pytest.mark.usefixtures("flashinfer")
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
    line, *log = python(PROGRAM, board, "import", isolated=True, packages=str(package.parent))
    told = json.loads(line)
    assert (told["contract"], told["layout"]) == ("mismatch", None)
    assert reason in told["reason"]
    assert not told["changed"]
    assert len(log) == 1
    assert "the probe stays off" in log[0]


def test_unchanged_copy_is_understood(package: Path, board: str) -> None:
    (line,) = python(PROGRAM, board, "import", isolated=True, packages=str(package.parent))
    told = json.loads(line)
    assert (told["contract"], told["release"]) == ("verified", "0.6.14")
    assert told["changed"]


def test_flashinfer_without_the_door_is_a_problem(package: Path, board: str) -> None:
    (package / "jit" / "core.py").write_text("")
    line, log = python(PROGRAM, board, "import", isolated=True, packages=str(package.parent))
    assert not json.loads(line)["changed"]
    assert "flashinfer.jit.core has no JitSpec.build_and_load" in log


def test_free_threaded_python_turns_the_probe_off(
    installed: Install, slot: ReadSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    finders = list(sys.meta_path)
    installed()
    assert slot().document["contract"] == "mismatch"
    assert "free-threaded" in slot().document["contract_reason"]
    assert sys.meta_path == finders


@pytest.mark.usefixtures("flashinfer")
def test_module_that_refuses_is_a_problem_and_stays_usable(
    installed: Install,
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
