"""A FlashInfer that needs neither torch nor a GPU: for interpreters that have neither.

Its launcher source is the installed one's, so that the contract is read for real; its native op
refuses what the launcher refuses of 64 heads with LSE in 394 MiB by layout B: more than 3,080 rows.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from ws_guard.contract import installed_contract

LAUNCHER = Path("data/csrc/trtllm_fmha_kernel_launcher.cu")

_CORE = """
class JitSpec:
    def __init__(self, name):
        self.name = name

    def build_and_load(self):
        return Native()


class Native:
    def trtllm_paged_attention_decode(self, *args):
        slab = 8 * 64 * args[{batch_at}] * 256 + 1048576
        if slab > 404750336:
            raise RuntimeError(
                "Buffer overflow when allocating memory for trtllm_gen_softmax_workspace with size "
                f"{{slab}} and alignment 16, but only 404750336 bytes available"
            )
"""

_CALLS = '''
from .jit import core

_modules = []


class Tensor:
    itemsize, is_cuda, is_meta = 1, False, True

    def __init__(self, *shape):
        self.shape = shape

    def numel(self):
        count = 1
        for size in self.shape:
            count *= size
        return count

    def data_ptr(self):
        return 4096


def decode(batch):
    """vLLM's sparse MLA step under DCP."""
    if not _modules:
        _modules.append(core.JitSpec("fmha_gen").build_and_load())
    named = {{
        "out": Tensor(batch, 1, 64, 512),
        "query": Tensor(batch, 64, 576),
        "workspace_buffer": Tensor(413138944),
        "max_q_len": 1,
        "max_kv_len": 65536,
        "batch_size": batch,
        "sparse_mla_top_k": 2048,
        "sm_count": 148,
        "workspace_size": 413138944,
        "lse": Tensor(batch, 64),
    }}
    args = [named.get(name) for name in {names!r}]
    _modules[0].trtllm_paged_attention_decode(*args)
'''


def make_package(directory: Path) -> None:
    """Put the package `flashinfer` into a directory for PYTHONPATH."""
    found = importlib.util.find_spec("flashinfer")
    if found is None or found.origin is None:
        pytest.skip("flashinfer is not installed: its launcher source is read")
    names = installed_contract().signatures["trtllm_paged_attention_decode"]
    package = directory / "flashinfer"
    (package / LAUNCHER).parent.mkdir(parents=True)
    shutil.copy(Path(found.origin).parent / LAUNCHER, package / LAUNCHER)
    (package / "jit").mkdir()
    for module in ("__init__.py", "jit/__init__.py"):
        (package / module).touch()
    core = _CORE.format(batch_at=list(names).index("batch_size"))
    (package / "jit" / "core.py").write_text(core)
    (package / "calls.py").write_text(_CALLS.format(names=list(names)))
    information = directory / "flashinfer_python-0.6.14.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: flashinfer-python\nVersion: 0.6.14\n")
