"""The plugin on a stand-in of vLLM: whom it takes for a worker, what it survives.

The real engine is in tests/real/vllm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ws_guard.engines import vllm_facts

ROOT = Path(__file__).parents[2]

#: A process of vLLM's, told from outside what stands in it; prints what is on the board.
PROGRAM = """
import json, logging, os, sys, types
logging.basicConfig(level="WARNING", stream=sys.stderr)
from ws_guard.board import Board, SlotReader, list_slots
from ws_guard.engines import vllm_plugin

def board():
    try:
        fd = os.open(os.environ["WS_GUARD_BOARD"], os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return []
    where = Board(os.environ["WS_GUARD_BOARD"])
    return [SlotReader(name).read(where, fd).document for name in list_slots(fd)[0]]

def module(name, **values):
    made = types.ModuleType(name)
    made.__dict__.update(values)
    sys.modules[name] = made
    return made

class WorkerBase:
    def __init__(self, vllm_config, rank=0):
        self.vllm_config, self.rank = vllm_config, rank
    def init_device(self): return "device"
    def load_model(self): return "model"
    def initialize_from_config(self, config): return "cache"
    def compile_or_warm_up_model(self): return "warm"

parallel = types.SimpleNamespace(
    tensor_parallel_size=2, decode_context_parallel_size=1, data_parallel_index=1, world_size=2,
    local_world_size=2)
text = types.SimpleNamespace(head_dim=128)
config = types.SimpleNamespace(
    parallel_config=parallel,
    scheduler_config=types.SimpleNamespace(max_num_batched_tokens=8192, max_num_seqs=64),
    model_config=types.SimpleNamespace(
        model="m", hf_config=text, get_num_attention_heads=lambda _: 16),
    compilation_config=types.SimpleNamespace(static_forward_context={}))
"""


def run(body: str, tmp_path: Path, **environ: str) -> tuple[Any, str]:
    """What a program prints as JSON, and its log."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + body],
        env={
            **{name: v for name, v in os.environ.items() if not name.startswith("WS_GUARD")},
            "PYTHONPATH": str(ROOT),
            "WS_GUARD_BOARD": str(tmp_path / "board"),
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_nobody_is_on_the_board_before_a_worker_is_made(tmp_path: Path) -> None:
    told, log = run(
        """
vllm_plugin.plugin()
vllm_plugin.plugin()
imported = sorted({"torch", "flashinfer", "vllm"} & set(sys.modules))
before = board()
module("vllm", __version__="0.33.0")
base = module("vllm.v1.worker.worker_base", WorkerBase=WorkerBase)
vllm_plugin._plugin._hook_workers(base)
worker = WorkerBase(config, rank=3)
returned = [worker.init_device(), worker.load_model()]
print(json.dumps([imported, before, board(), returned]))
""",
        tmp_path,
    )
    imported, before, (document,), returned = told
    assert (imported, before, returned) == ([], [], ["device", "model"])
    assert (document["engine"], document["rank"], document["expected_workers"]) == ("1", "1", 2)
    # No attribute `device` in this worker: a milestone that fails is one line, no more.
    assert log.count("is not as ws_guard knows it") == 1
    assert "'WorkerBase' object has no attribute 'device'" in log


@pytest.mark.parametrize(
    "body",
    [
        # No worker base, or none of its class; a configuration that tells nothing.
        'module("vllm.v1.worker.worker_base")',
        'module("vllm.v1.worker.worker_base", WorkerBase=WorkerBase); config = object()',
        'module("vllm.v1.attention.backends.mla.flashinfer_mla_sparse")',
    ],
)
def test_unknown_vllm_is_one_line_and_the_probe_stays(tmp_path: Path, body: str) -> None:
    told, log = run(
        body
        + """
vllm_plugin.plugin()
made = WorkerBase(config)
from ws_guard.probe.life import is_installed
print(json.dumps([made.rank, is_installed()]))
""",
        tmp_path,
    )
    assert told == [0, True]
    assert log.count("is not as ws_guard knows it") == 1
    assert "Traceback" not in log


def test_switched_off_hooks_nothing(tmp_path: Path) -> None:
    told, log = run(
        """
original = WorkerBase.__init__
module("vllm.v1.worker.worker_base", WorkerBase=WorkerBase)
vllm_plugin.plugin()
print(json.dumps([WorkerBase.__init__ is original, board()]))
""",
        tmp_path,
        WS_GUARD_ENABLED="0",
    )
    assert told == [True, []]
    assert log == ""


def parallel(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"local_world_size": 4, "data_parallel_size_local": 1, **values})


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, 4),
        ({"data_parallel_size_local": 2}, 8),
        ({"data_parallel_size_local": 0}, 4),
        ({"distributed_executor_backend": "ray"}, None),
        ({"data_parallel_backend": "ray"}, None),
        ({"distributed_executor_backend": "external_launcher"}, 6),
    ],
)
def test_expected_workers_are_those_of_this_host(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], expected: int | None
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "6")
    assert vllm_facts.expected_workers(parallel(**told)) == expected
