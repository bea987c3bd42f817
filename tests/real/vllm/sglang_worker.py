"""An SGLang worker without a GPU: `sglang_worker.py SGLANG_DIRECTORY SCENARIO`, printing JSON.

SGLang's own: the plugin loader, the `HookRegistry`, `ServerArgs` and their publication, the class
`ModelRunner` that is hooked, the modules of the backends, and `get_buffer`, the factory of their
workspaces. Stood in for: packages that are missing here, and what `init_attention_backends` does on
a GPU beside asking the factory for the workspace.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import json
import os
import sys
import types
from types import SimpleNamespace as Namespace
from typing import Any
from unittest.mock import MagicMock

sys.path.insert(0, sys.argv[1])

from boards import documents, health

BOARD = os.environ["WS_GUARD_BOARD"]
MIB = 1 << 20
ATTENTION = "sglang.srt.layers.attention"

#: What the engine is told, its backend, its model's attention, and which buffer it asks for.
SCENARIOS: dict[str, dict[str, Any]] = {
    "mla": {
        "args": {"tp_size": 8, "dcp_size": 8, "chunked_prefill_size": 8192},
        "backend": "trtllm_mla",
        "architecture": "DeepseekV3ForCausalLM",
        "model": {"kv_lora_rank": 512, "qk_rope_head_dim": 64},
        "requests": 597,
        "buffer": ("trtllm_mla_zero_workspace", "trtllm_mla_backend", 150 * MIB),
    },
    "mha": {
        "args": {"tp_size": 4, "chunked_prefill_size": 8192},
        "backend": "trtllm_mha",
        "architecture": "Qwen3ForCausalLM",
        "model": {"head_dim": 128},
        "requests": 256,
        "buffer": ("trtllm_mha_zero_workspace", "trtllm_mha_backend", 512 * MIB),
    },
    "dsa": {
        "args": {"tp_size": 8, "dcp_size": 8, "chunked_prefill_size": 8192},
        "backend": "dsa",
        "architecture": "DeepseekV32ForCausalLM",
        "model": {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048},
        "requests": 256,
        "buffer": ("dsa_trtllm_workspace", "dsa_backend", 8 * 384 * MIB),
    },
    "dsv4": {
        "args": {"tp_size": 8, "chunked_prefill_size": 8192, "dsv4_attn_backend": "trtllm"},
        "backend": "dsv4",
        "architecture": "DeepseekV4ForCausalLM",
        "model": {"head_dim": 512, "model_type": "deepseek_v4"},
        "requests": 256,
        "buffer": ("trtllm_dsv4_zero_workspace", "deepseek_v4_trtllm_backend", 128 * MIB),
    },
    "none": {
        "args": {"tp_size": 2, "chunked_prefill_size": 8192},
        "backend": "fa3",
        "architecture": "Qwen3ForCausalLM",
        "model": {"head_dim": 128},
        "requests": 256,
        "buffer": None,
    },
}


class Absent(types.ModuleType):
    """A package that is not installed: any name in it is there, and does nothing."""

    __path__: list[str] = []  # noqa: RUF012 - the mark of a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class AbsentFinder:
    """Finds the packages that SGLang imports and that no test needs."""

    names = ("IPython", "vllm")

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def runner_of(scenario: dict[str, Any], module: Any) -> Any:
    """A real model runner's object, as far as it comes without a GPU."""
    text = Namespace(**scenario["model"])
    config = Namespace(
        num_attention_heads=128,
        context_len=131_072,
        hf_text_config=text,
        hf_config=Namespace(architectures=[scenario["architecture"]]),
    )
    runner = object.__new__(module.ModelRunner)
    with contextlib.suppress(Exception):
        # Needs a GPU, and fails soon without one; the hook comes first.
        runner.__init__(config, 0.9, 0, 0, Namespace())
    runner.model_config = config
    runner.is_draft_worker = False
    runner.device = "cpu"
    runner.max_running_requests = scenario["requests"]
    return runner


def make_backends(scenario: dict[str, Any], runner: Any, module: Any, torch: Any) -> int | None:
    """SGLang's `init_attention_backends`, with its real factory; the workspace's address."""
    made = None

    def build(**_: Any) -> Any:
        nonlocal made
        if scenario["buffer"] is not None:
            name, backend, size = scenario["buffer"]
            get_buffer = importlib.import_module(f"{ATTENTION}.{backend}").get_buffer
            made = get_buffer(name, lambda: torch.empty(size, dtype=torch.uint8))
        return Namespace(
            attn_backend=None, decode_attn_backend=None, decode_attn_backend_group=None
        )

    backend = scenario["backend"]
    module.configure_aux_hidden_state_capture = MagicMock()
    module.resolve_attention_backend_strs = lambda **_: Namespace(prefill=backend, decode=backend)
    module.build_attention_backends = build
    runner.model = runner.spec_aux_config = runner.kv_index_translator = MagicMock()
    runner._prepare_replicated_q_proj = MagicMock()
    runner.init_attention_backends()
    return None if made is None else made.data_ptr()


def load_plugins(runners: str) -> dict[str, Any]:
    """SGLang's own loading of its plugins; what is there before and after `runners` is imported."""
    import sglang.srt.plugins as plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    plugins.load_plugins()
    seen: dict[str, Any] = {
        "loaded": plugins._plugins_loaded,
        "plugins_only": documents(BOARD),
        "runner_imported": runners in sys.modules,
    }
    importlib.import_module(runners)
    seen["hooked"] = sorted(HookRegistry._patched)
    sources = [source for hooks in HookRegistry._hooks.values() for _, _, source in hooks]
    seen["sources"] = sorted({source.plugin_name for source in sources if source})
    return seen


def publish(arguments: dict[str, Any]) -> None:
    """Tell this process its server's arguments and its ranks, as SGLang does."""
    import sglang.srt.runtime_context as context
    from sglang.srt.server_args import ServerArgs

    told = ServerArgs(model_path="dummy", device="cuda", **arguments)
    ranks = context.SpawnRanks(world_rank=1, dp_rank=None, gpu_id=1)
    context.publish(told, role="scheduler", ranks=ranks)


def names(address: int) -> dict[str, str]:
    """What the plugin calls the buffer at an address, by entry."""
    from ws_guard.engines import sglang_plugin
    from ws_guard.sizing import OPS

    assert sglang_plugin._plugin is not None
    return {entry: sglang_plugin._plugin.site_of(address, op) for entry, op in OPS.items()}


def main() -> None:
    """Start a worker, and print what stands on the board at each step."""
    scenario = SCENARIOS[sys.argv[2]]
    sys.meta_path.append(AbsentFinder())
    import torch

    runners = "sglang.srt.model_executor.model_runner"
    if sys.argv[3:] == ["runner-first"]:
        importlib.import_module(runners)
    seen = load_plugins(runners)
    module = sys.modules[runners]
    publish(scenario["args"])
    runner = runner_of(scenario, module)
    seen["made"] = documents(BOARD)
    address = make_backends(scenario, runner, module, torch)
    seen["built"] = documents(BOARD)
    seen["health"] = health(BOARD)
    if address is not None:
        seen["names"] = names(address)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
