"""A vLLM worker without a GPU: `vllm_worker.py TOKENS [VLLM_DIRECTORY]`, printing JSON.

The plugin comes in through vLLM's own loader, and vLLM's own worker base, metadata builder and
workspace are used. Simple namespaces stand for the configuration and the model's layer; there is no
process group and no pinned memory without a GPU.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace as Namespace
from typing import Any

if len(sys.argv) > 2:
    sys.path.insert(0, sys.argv[2])

from boards import documents, health
from vllm.plugins import load_general_plugins

BOARD = os.environ["WS_GUARD_BOARD"]
TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 512
TP = DCP = 8
HEADS_PER_RANK = 16


def model(torch: Any) -> Namespace:
    """DeepSeek-V3.2, as far as worker and builder look into it."""
    text = Namespace(
        index_topk=2048,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        q_lora_rank=1536,
    )
    return Namespace(
        model="deepseek-ai/DeepSeek-V3.2",
        served_model_name=["deepseek"],
        hf_config=text,
        hf_text_config=text,
        max_model_len=4096,
        dtype=torch.bfloat16,
        get_num_attention_heads=lambda _: HEADS_PER_RANK,
        model_arch_config=Namespace(total_num_attention_heads=TP * HEADS_PER_RANK),
    )


def layer(sparse: Any, common: Any) -> Namespace:
    """A layer of it, in the releases with a manager of DCP and in those without."""
    manager = getattr(common, "MLADCPManager", None)
    return Namespace(
        prefill_backend=None,
        dcp_manager=object.__new__(manager) if manager else None,
        get_attn_backend=lambda: sparse.FlashInferMLASparseTRTLLMBackend,
    )


def configuration(torch: Any, sparse: Any, common: Any) -> Namespace:
    """A VllmConfig as far as worker and builder look into it, over eight ranks."""
    nothing = ("lora_config", "load_config", "device_config", "observability_config")
    return Namespace(
        **dict.fromkeys(nothing),
        kv_transfer_config=None,
        speculative_config=None,
        model_config=model(torch),
        parallel_config=Namespace(
            tensor_parallel_size=TP,
            decode_context_parallel_size=DCP,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
            data_parallel_index=2,
            data_parallel_size=4,
            data_parallel_size_local=1,
            world_size=TP,
            local_world_size=TP,
        ),
        scheduler_config=Namespace(max_num_batched_tokens=TOKENS, max_num_seqs=64),
        cache_config=Namespace(block_size=64, cache_dtype="auto"),
        compilation_config=Namespace(
            static_forward_context={"layer.0": layer(sparse, common)}, ir_enable_torch_wrap=False
        ),
        attention_config=Namespace(hisparse_config=None),
        kernel_config=Namespace(ir_op_priority=Namespace(set_default=lambda: None)),
    )


def names(address: int) -> dict[str, str] | None:
    """What the plugin calls the buffer at an address, by entry; None where it is switched off."""
    from ws_guard.engines import vllm_plugin
    from ws_guard.sizing import OPS

    worker = vllm_plugin._plugin._worker if vllm_plugin._plugin else None
    return worker and {entry: worker.site_of(address, op) for entry, op in OPS.items()}


def worker_class(torch: Any, sparse: Any, base: type[Any]) -> type[Any]:
    """vLLM's own worker base, and what a worker on a GPU would do where nothing is left to it."""

    class Worker(base):
        def init_device(self) -> None:
            self.device = torch.device("cpu")

        def load_model(self, **_: Any) -> None:
            pass

        def initialize_from_config(self, _: Any) -> None:
            backend = sparse.FlashInferMLASparseTRTLLMBackend
            builder = backend.get_builder_cls()
            builder(Namespace(block_size=64), ["layer.0"], self.vllm_config, torch.device("cpu"))

        def compile_or_warm_up_model(self) -> int:
            # vLLM's own way to the buffer, as the first forward of the warm-up takes it.
            sparse._get_workspace_buffer(torch.device("cpu"))
            return 7

    return Worker


def main() -> None:
    """Start a worker, and print what stands on the board at each step."""
    load_general_plugins()
    seen: dict[str, Any] = {
        "early": sorted({"torch", "flashinfer", "vllm.v1.worker.worker_base"} & set(sys.modules)),
        "plugins_only": documents(BOARD),
    }
    import torch
    from vllm.model_executor.layers.attention import sparse_mla_attention as common
    from vllm.v1.attention.backends.mla import flashinfer_mla_sparse as sparse
    from vllm.v1.worker.worker_base import WorkerBase

    common.PIN_MEMORY = False
    common.get_dcp_group = lambda: Namespace(world_size=DCP, rank_in_group=0)
    config = configuration(torch, sparse, common)
    seen["imports_only"] = documents(BOARD)
    # An external launcher counts ranks across engines: the fourth of the third engine.
    worker = worker_class(torch, sparse, WorkerBase)(
        config, local_rank=3, rank=2 * TP + 3, distributed_init_method=""
    )
    seen["made"] = documents(BOARD)
    worker.init_device()
    worker.load_model()
    worker.initialize_from_config(Namespace(kv_cache_tensors=[Namespace(size=1 << 30)]))
    seen["built"] = documents(BOARD)
    seen["returned"] = worker.compile_or_warm_up_model()
    seen["warm"] = documents(BOARD)
    seen["health"] = health(BOARD)
    buffer = sparse._fi_sparse_workspace
    seen["allocated"] = buffer.nbytes
    seen["names"] = names(buffer.data_ptr())
    seen["zeroed"] = not bool(buffer.any())
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
