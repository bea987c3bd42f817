"""The messages, as FlashInfer, vLLM and torch write them, and what a log tells beside them."""

from __future__ import annotations

#: No model of this machine's hub cache takes part.
NO_HUB = {"HF_HUB_CACHE": "/nowhere"}

#: The variables that size an engine's workspaces.
VLLM = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
SGLANG = "SGLANG_FLASHINFER_WORKSPACE_SIZE"
#: The launch of the reported crash, and its model.
FLAGS = (
    "vllm serve GLM --tensor-parallel-size 8 --decode-context-parallel-size 8 "
    "--max-num-batched-tokens 16384"
)
HEADS = '"num_attention_heads": 64,'


def overflow(slab: str, size: int, available: int, line: int = 49) -> str:
    """FlashInfer since August 2025."""
    return (
        "RuntimeError: Error in function 'aligned_alloc' at "
        f"/workspace/include/flashinfer/allocator.h:{line}: "
        f"Buffer overflow when allocating memory for {slab} with size {size} and alignment 16, "
        f"but only {available} bytes available in AlignedAllocator. "
        "Increase the workspace buffer size."
    )


#: What trtllm-gen's launcher calls its statistics.
STATS = "trtllm_gen_softmax_workspace"
#: The reported crash: 64 heads, 12,288 rows, in what the counter leaves of 394 MiB.
CRASH = overflow(STATS, 1_611_661_312, 404_750_336)


def old_overflow(slab: str, size: int) -> str:
    """FlashInfer from August 2024 to July 2025."""
    return (
        f"RuntimeError: Failed to allocate memory for {slab} with size {size} and alignment 16 "
        "in AlignedAllocator"
    )


#: FlashInfer before that, its spelling included.
UNNAMED = "RuntimeError: RuntimeError: Out of workspace memory in AlignedAlloactor"


def short_counter(given: int, needed: int) -> str:
    """FlashInfer's Python, 0.6.15 on."""
    return (
        f"ValueError: multi_ctas_kv_counter_buffer is too small: got {given} bytes, "
        f"need {needed} bytes"
    )


#: The launcher itself.
COUNTER_CHECK = (
    "RuntimeError: Check failed: (static_cast<size_t>(multi_ctas_kv_counter_size) >= "
    "counter_bytes) is false: "
)


def locked(caller: str, needed: str, current: str) -> str:
    """vLLM's workspace manager; sizes in MiB with two decimals."""
    return (
        f"AssertionError: Workspace is locked but allocation from '{caller}' requires {needed} MB, "
        f"current size is {current} MB. Workspace growth is not allowed after locking."
    )


def out_of_memory(wanted: str, free: str, total: str = "21.66 GiB") -> str:
    """torch 2.x."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted}. "
        f"GPU 0 has a total capacity of {total} of which {free} is free. "
        "Including non-PyTorch memory, this process has 21.20 GiB memory in use. Of the allocated "
        "memory 20.58 GiB is allocated by PyTorch, and 217.30 MiB is reserved by PyTorch but "
        "unallocated."
    )


def failed_step(tokens: int) -> str:
    """What vLLM's engine core writes of the step in which a worker failed (`dump_input.py`)."""
    return (
        "(EngineCore pid=176) ERROR 07-05 12:00:02 [dump_input.py:79] Dumping scheduler output for "
        "model execution: SchedulerOutput(scheduled_new_reqs=[], num_scheduled_tokens={cmpl-5-0: "
        f"{tokens}}}, total_num_scheduled_tokens={tokens}, scheduled_spec_decode_tokens={{}})"
    )
