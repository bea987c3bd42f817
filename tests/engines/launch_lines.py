"""Real launch lines, as data: what each says, and the plan that follows, worked out beside it."""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20
VLLM_VARIABLE = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
SGLANG_VARIABLE = "SGLANG_FLASHINFER_WORKSPACE_SIZE"
SERVER = "python3 -m vllm.entrypoints.openai.api_server"
SGL = "python -m sglang.launch_server --model-path"


class Case(NamedTuple):
    """A line and what it means. `site` is the one whose numbers are told; None: none is live."""

    line: str
    model: str
    kind: str
    heads: int = 64
    tp: int = 1
    dcp: int = 1
    pcp: int = 1
    dp: int = 1
    tokens: int = 16_384
    seqs: int = 1_024
    workspace: int | None = None
    version: str = "0.33.0"
    fits: bool = True
    site: str | None = None
    kernel_heads: int = 0
    threshold: int | None = None
    env: str | None = None


def rows(workspace: int, heads: int, q_len: int = 256, counter: int = 0) -> int:
    """Rows whose slab fits, by the facts: 8 * heads * rows * round_up(q, 256) + 1 MiB."""
    return (workspace - counter - MIB) // (8 * heads * -(-q_len // 256) * 256)


GLM = {"model": "zai/glm", "kind": "sparse_mla", "site": "sparse_mla"}
R1 = {"model": "deepseek/r1", "kind": "mla", "heads": 128, "site": "mla_decode"}
LLAMA = {"model": "meta/llama", "kind": "gqa", "site": "dense_decode"}

VLLM_CASES = [
    # The reported crash: 64 / 8 * 8 heads, layout B; 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB
    Case(
        "vllm serve zai/glm -tp 8 -dcp 8 --max-num-batched-tokens 16384 --kv-cache-dtype fp8",
        **GLM, tp=8, dcp=8, version="0.26.0", fits=False, kernel_heads=64,
        threshold=rows(394 * MIB, 64, counter=8 * MIB), env="2561671168",
    ),
    # 0.30.0 and later size it: rows(2,561,671,168)
    Case(
        "vllm serve zai/glm --tensor-parallel-size 8 --decode-context-parallel-size=8",
        **GLM, tp=8, dcp=8, kernel_heads=64, threshold=rows(2_561_671_168, 64),
    ),
    # An explicit value wins over the computed one: nothing to set, unset it
    Case(
        f"{VLLM_VARIABLE}=413138944 vllm serve zai/glm -tp 8 -dcp 8",
        **GLM, tp=8, dcp=8, workspace=413_138_944, fits=False, kernel_heads=64,
        threshold=rows(394 * MIB, 64),
    ),
    Case(
        f"env {VLLM_VARIABLE}=2561671168 vllm serve zai/glm -tp 8 -dcp 8 "
        "--max-num-batched-tokens 16K",
        **GLM, tp=8, dcp=8, workspace=2_561_671_168, version="0.26.0", kernel_heads=64,
        threshold=rows(2_561_671_168, 64, counter=8 * MIB),
    ),
    # 16k is decimal; 3,145 and more rows would not fit into 394 MiB: 8,000 tokens do not either
    Case(
        "vllm serve zai/glm -tp=8 -dcp=8 --max_num_batched_tokens 8k",
        **GLM, tp=8, dcp=8, tokens=8_000, version="0.27.1", fits=False, kernel_heads=64,
        threshold=rows(394 * MIB, 64), env=str(394 * MIB + 8 * 64 * 8_000 * 256 + MIB),
    ),
    # No DCP, no LSE, no slab. 0.26.0's server default is 8,192 tokens
    Case(
        "HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES=0,1 vllm serve zai/glm -tp 2",
        **GLM, tp=2, tokens=8_192, version="0.26.0", kernel_heads=32,
    ),
    # PCP counts towards the group that DCP divides: 64 / 4 * 8
    Case(
        "vllm serve zai/glm -tp 4 -pcp 2 -dcp 8 --max-num-batched-tokens 1024",
        **GLM, tp=4, pcp=2, dcp=8, tokens=1_024, version="0.32.0", kernel_heads=128,
        threshold=rows(394 * MIB + 8 * 128 * 1_024 * 256 + MIB, 128),
    ),
    # 0.33.0's backend refuses PCP with DCP; the ragged prefill is left, up to index_topk tokens
    Case(
        "vllm serve zai/glm -tp 4 -pcp 2 -dcp 8",
        **{**GLM, "site": "mla_prefill_ragged"}, tp=4, pcp=2, dcp=8, kernel_heads=16,
        threshold=rows(394 * MIB, 16, 2_048),
    ),
    # Another backend is chosen: the same
    Case(
        "vllm serve zai/glm -tp 8 -dcp 8 --attention-backend FLASHMLA_SPARSE",
        **{**GLM, "site": "mla_prefill_ragged"}, tp=8, dcp=8, kernel_heads=8,
        threshold=rows(394 * MIB, 8, 2_048),
    ),
    # Batched experts run steps of 256 tokens
    Case(
        "vllm serve zai/glm -tp 4 -dp 2 -ep --all2all-backend deepep_low_latency -pp 2",
        **GLM, tp=4, dp=2, tokens=256, kernel_heads=16,
    ),
    # Twice the defaults
    Case(
        "vllm serve zai/glm -tp 8 --performance-mode throughput",
        **GLM, tp=8, tokens=32_768, seqs=2_048, kernel_heads=8,
    ),
    # Steps are never longer than all sequences: 2 * 4,096
    Case(
        "vllm serve zai/glm -tp 8 --max-model-len 4096 --max-num-seqs 2",
        **GLM, tp=8, tokens=8_192, seqs=2, kernel_heads=8,
    ),
    # Without chunks a prompt is one step; 65,536 rows cannot launch
    Case(
        "vllm serve zai/glm -tp 8 --no-enable-chunked-prefill --max-model-len 64K",
        **GLM, tp=8, tokens=65_536, fits=False, kernel_heads=8,
    ),
    # Overrides, as JSON and dotted: 32 / 8 * 8 and 96 / 8 * 8 heads
    Case(
        """vllm serve zai/glm -tp 8 -dcp 8 --hf-overrides '{"num_attention_heads": 32}'""",
        **GLM, heads=32, tp=8, dcp=8, kernel_heads=32,
        threshold=rows(394 * MIB + 8 * 32 * 16_384 * 256 + MIB, 32),
    ),
    Case(
        "vllm serve zai/glm -tp 8 -dcp 8 --hf-overrides.num_attention_heads 96",
        **GLM, heads=96, tp=8, dcp=8, kernel_heads=96,
        threshold=rows(394 * MIB + 8 * 96 * 16_384 * 256 + MIB, 96),
    ),
    # A model behind flags, with switches and a list before it that take nothing or several
    Case(
        "vllm serve --trust-remote-code --served-model-name a b --port 8000 --model zai/glm -tp 8",
        **GLM, tp=8, kernel_heads=8,
    ),
    # Dense MLA: 256 MiB under DCP, 1,024 sequences by default, layouts B and C
    Case(
        "vllm serve deepseek/r1 -tp 8 -dcp 8",
        **R1, tp=8, dcp=8, tokens=8_192, version="0.25.0", fits=False, kernel_heads=128,
        threshold=988,
    ),
    Case(
        "vllm serve deepseek/r1 -tp 8 -dcp 8 --max-num-seqs 1020",
        **R1, tp=8, dcp=8, seqs=1_020, version="0.28.0", kernel_heads=128, threshold=1_020,
    ),
    # cute-dsl since 0.29.0; each row carries 1 + 3 tokens
    Case(
        "vllm serve deepseek/r1 -tp 8 -dcp 8 "
        """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""",
        **R1, tp=8, dcp=8, kernel_heads=128,
    ),
    # The ragged prefill by name: 394 MiB + 8 * 16 * 1,024 * 16,384 + 1 MiB
    Case(
        """vllm serve deepseek/r1 -tp 8 -ac '{"mla_prefill_backend": "TRTLLM_RAGGED"}'""",
        **{**R1, "site": "mla_prefill_ragged"}, tp=8, fits=False, kernel_heads=16, threshold=196,
        env=str(394 * MIB + 8 * 16 * 1_024 * 16_384 + MIB),
    ),
    Case(
        "vllm serve deepseek/r1 -tp 8 --attention-config.mla_prefill_backend=TRTLLM_RAGGED "
        "--max-num-seqs 192",
        **{**R1, "site": "mla_prefill_ragged"}, tp=8, seqs=192, tokens=8_192, version="0.26.0",
        kernel_heads=16, threshold=rows(394 * MIB, 16, 8_192, counter=8 * MIB),
    ),
    # GQA: no LSE without DCP; the module, underscores, a wrapper before it
    Case(
        f"nohup numactl --cpunodebind=0 {SERVER} --model meta/llama --tensor_parallel_size 4 "
        "--max_num_seqs=256 --max_model_len 16k",
        **LLAMA, tp=4, seqs=256, kernel_heads=16,
    ),
    # GQA under DCP: 64 / 8 * 2 heads
    Case(
        f"{SERVER} --model qwen/moe -tp 8 -dcp 2 --max-num-batched-tokens 8192",
        **{**LLAMA, "model": "qwen/moe"}, tp=8, dcp=2, tokens=8_192, kernel_heads=16,
        threshold=rows(394 * MIB, 16),
    ),
    # 64 heads gathered fully: 3,144 rows; 4,096 sequences do not fit
    Case(
        "vllm serve meta/llama -tp 8 -dcp 8 --max-num-seqs 4096",
        **LLAMA, tp=8, dcp=8, seqs=4_096, fits=False, kernel_heads=64, threshold=3_144,
        env=str(394 * MIB + 8 * 64 * 4_096 * 256 + MIB),
    ),
    Case(
        "vllm serve meta/llama --attention-backend FLASH_ATTN -tp 8",
        **{**LLAMA, "site": None}, tp=8,
    ),
    # A nested text config; heads padded to 64 under DeepSeek-V4
    Case(
        "vllm serve moonshot/kimi -tp 8 --max-num-batched-tokens 25.6k",
        "moonshot/kimi", "mla", tp=8, tokens=25_600, site="mla_decode", kernel_heads=8,
    ),
    Case(
        "vllm serve deepseek/v4 -tp 8", "deepseek/v4", "dsv4", tp=8, site="dsv4", kernel_heads=64
    ),
]  # fmt: skip

DSR1 = {"model": "deepseek/r1", "kind": "mla", "heads": 128, "version": "0.5.23"}
DSA = {"model": "zai/glm", "kind": "sparse_mla", "site": "dsa", "version": "0.5.23"}
PREFIX, DECODE = "trtllm_mla_prefix", "trtllm_mla_decode"

SGLANG_CASES = [
    # (150 MiB - 1 MiB) / (8 * 16 * 16,384)
    Case(
        f"{SGL} deepseek/r1 --tp 8", **DSR1, tp=8, seqs=4_096, fits=False, site=PREFIX,
        kernel_heads=16, threshold=74,
    ),
    Case(
        f"{SGL} deepseek/r1 --tp 8 --prefill-max-requests 74",
        **DSR1, tp=8, seqs=4_096, site=PREFIX, kernel_heads=16, threshold=74,
    ),
    # (150 MiB - 1 MiB) / (8 * 128 * 256)
    Case(
        f"{SGL} deepseek/r1 --tp-size 8 --dcp-size 8 --max-running-requests 596 "
        "--disable-chunked-prefix-cache",
        **DSR1, tp=8, dcp=8, seqs=596, site=DECODE, kernel_heads=128, threshold=596,
    ),
    Case(
        f"{SGL}=deepseek/r1 --tp 8 --decode-context-parallel-size 8 --max-running-requests=597 "
        "--disable-chunked-prefix-cache",
        **DSR1, tp=8, dcp=8, seqs=597, fits=False, site=DECODE, kernel_heads=128, threshold=596,
    ),
    # Attention data parallelism: 128 heads for each rank, chunks of 65,536 / 8, 128 / 8 requests
    Case(
        "sglang serve deepseek/r1 --tp 8 --dp 8 --enable-dp-attention --chunked-prefill-size 65536"
        " --max-running-requests 128",
        **DSR1, tp=8, dp=8, tokens=65_536, seqs=128, site=PREFIX, kernel_heads=128, threshold=18,
    ),
    Case(
        "sglang serve --model-path deepseek/r1 --tp 8 --attn-dp-size 8 --chunked-prefill-size "
        "65536 --max-running-requests 256",
        **DSR1, tp=8, tokens=65_536, seqs=256, fits=False, site=PREFIX, kernel_heads=128,
        threshold=18,
    ),
    Case(
        f"{SGL} deepseek/r1 --tp 8 --attention-backend flashinfer",
        **DSR1, tp=8, seqs=4_096, site=None,
    ),
    # 8 * 384 MiB; (3 GiB - 128 MiB) / (64 * 2,048) = 23,552 rows a call: the step is not cut
    Case(
        "sglang serve zai/glm --tp 8 --dcp 8", **DSA, tp=8, dcp=8, seqs=4_096, kernel_heads=64,
        threshold=rows(3072 * MIB, 64),
    ),
    # (2 GiB - 128 MiB) / (64 * 2,048) = 15,360: cut by the engine, and so it fits
    Case(
        f"{SGLANG_VARIABLE}=268435456 sglang serve zai/glm --tp 8 --dcp 8",
        **DSA, tp=8, dcp=8, seqs=4_096, workspace=268_435_456, kernel_heads=64,
        threshold=rows(2048 * MIB, 64),
    ),
    Case(
        f"{SGL} zai/glm --tp 8 --dsa-prefill-backend tilelang --dsa-decode-backend flashmla_kv",
        **{**DSA, "site": "dsa_prefill"}, tp=8, seqs=4_096, kernel_heads=8,
    ),
    Case(
        "sglang serve meta/llama --tp 4 --chunked-prefill-size -1 --max-prefill-tokens 32K "
        "--context-length 8192",
        "meta/llama", "gqa", tp=4, tokens=32_768, seqs=4_096, site="trtllm_mha_decode",
        kernel_heads=16, version="0.5.23",
    ),
    Case(
        f"{SGL} deepseek/v4 --tp 8 --dsv4-attn-backend trtllm",
        "deepseek/v4", "dsv4", tp=8, seqs=256, site="dsv4", kernel_heads=8, version="0.5.23",
    ),
    Case(
        f"{SGL} deepseek/v4 --tp 8",
        "deepseek/v4", "dsv4", tp=8, seqs=256, version="0.5.23",
    ),
    Case(
        "sglang serve moonshot/kimi --tp 8 --disable-chunked-prefix-cache",
        "moonshot/kimi", "mla", tp=8, seqs=4_096, site=DECODE, kernel_heads=8, version="0.5.23",
    ),
]  # fmt: skip
