"""Every public report with a size, as a log, and what must be found in it.

The numbers are those of tests/data/reports.jsonl; what must come out is worked out beside each.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from messages import SGLANG, VLLM, locked, old_overflow, out_of_memory, overflow


class Case(NamedTuple):
    """A report as a log (its lines, the message last), and what must be found in it."""

    report: str
    lines: list[str]
    confidence: str
    solution: dict[str, Any] | None
    workspaces: list[int]
    need: int | None
    recommended: int | None
    env: dict[str, str]
    more: dict[str, Any] = {}  # noqa: RUF012 - never written to


def _config(**values: int) -> str:
    return json.dumps(values)


CASES = (
    Case(
        "vllm-project/vllm#50781",
        [
            "vLLM API server version 0.26.0",
            (
                "non-default args: {'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, "
                "'max_num_seqs': 24, 'max_num_batched_tokens': 16384}"
            ),
            "flashinfer-python==0.6.14.dev20260705",
            _config(num_attention_heads=64),
            overflow("trtllm_gen_softmax_workspace", 1_611_661_312, 404_750_336),
        ],
        "exact",
        # 64 / 8 * 8 heads; (1,611,661,312 - 1,048,576) / (8 * 64 * 256) rows.
        {"num_qo_heads": 64, "batch_size": 12_288, "max_q_len": 1},
        [404_750_336 + 8_388_608],
        1_611_661_312 + 8_388_608,
        # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB.
        413_138_944 + 2_147_483_648 + 1_048_576,
        {VLLM: "2561671168"},
        {"overflow_threshold_batch": 3_080, "layouts": ("B",)},
    ),
    Case(
        "vllm-project/vllm#40023",
        [
            "vLLM API server version 0.19.1rc1.dev231+g9dd5ee011.cu130",
            "non-default args: {'max_num_seqs': 528, 'data_parallel_size': 8}",
            _config(num_attention_heads=32, num_key_value_heads=2, head_dim=256),
            "NVIDIA B300",
            overflow("batch_prefill_tmp_v", 536_346_624, 413_138_944),
        ],
        "exact",
        # A graph of 512 rows: 512 * 16 / 16 + 511 tiles of 16 rows, 32 heads, 256 floats each.
        {"num_qo_heads": 32, "batch_size": 512, "tiles": 1_023, "tile": 16, "head_dim": 256},
        [413_138_944],
        # tmp_s: a float for each of the same 32 * 1,023 * 16 rows.
        536_346_624 + 2_095_104,
        538_441_728,
        {VLLM: "538441728"},
        # 2 * 392 - 1 = 783 tiles of 526,336 bytes fit, 785 do not.
        {"overflow_threshold_batch": 392, "note": "33,652,608 bytes"},
    ),
    Case(
        "vllm-project/vllm#25342",
        [
            "vLLM API server version 0.10.2",
            "non-default args: {'max_model_len': 262144, 'kv_cache_dtype': 'fp8_e4m3'}",
            overflow("batch_prefill_tmp_v", 283_115_520, 268_435_456),
        ],
        "consistent",
        # 96 * 45 * 128 * 128 * 4.
        {"num_qo_heads": 96, "tiles": 45, "tile": 128, "head_dim": 128},
        [268_435_456],
        # Nothing tells the head dimension: 64, the smallest, has the largest tmp_s.
        283_115_520 + 283_115_520 // 64,
        287_539_200,
        # The variable came with 0.11.1.
        {},
        {"note": "take that or a later one, there 413,138,944 bytes are the default"},
    ),
    Case(
        "flashinfer-ai/flashinfer#1353",
        [
            "flashinfer-python 0.2.9",
            "NVIDIA B200",
            _config(num_attention_heads=64, num_key_value_heads=8, head_dim=128),
            overflow("batch_prefill_tmp_v", 155_189_248, 134_217_728),
        ],
        "exact",
        # 2 * 148 SMs / 8 KV heads.
        {"num_qo_heads": 64, "tiles": 37, "tile": 128, "head_dim": 128},
        [134_217_728],
        155_189_248 + 155_189_248 // 128,
        156_401_664,
        {},
    ),
    Case(
        "sgl-project/sglang#1405",
        [
            (
                "python3 -m sglang.launch_server --model-path Qwen/Qwen2-7B --dp-size 2 "
                "--chunked-prefill-size 8192"
            ),
            "flashinfer==0.1.6+cu121torch2.4",
            _config(num_attention_heads=28, num_key_value_heads=4, head_dim=128),
            old_overflow("batch_prefill_tmp_v", 458_752_000),
        ],
        "exact",
        # 8,192 tokens * 7 / 128 = 448 tiles and 52 ragged ones; values of two bytes.
        {"num_qo_heads": 28, "tiles": 500, "tile": 128, "head_dim": 128},
        [],
        # tmp_s is in floats all the same: 28 * 500 * 128 * 4.
        458_752_000 + 7_168_000,
        465_920_000,
        {SGLANG: "465920000"},
    ),
    Case(
        "sgl-project/sglang#30244",
        [
            (
                "server_args=ServerArgs(model_path='q', tp_size=1, chunked_prefill_size=8192, "
                "enable_deterministic_inference=True, attention_backend='flashinfer')"
            ),
            "NVIDIA GB10",
            _config(num_attention_heads=24, num_key_value_heads=4, head_dim=256),
            "flashinfer-python==0.6.18",
            overflow("batch_prefill_tmp_v", 2_415_919_104, 2_147_483_648, line=71),
        ],
        "exact",
        # 8,192 * 6 / 64 = 768 tiles, twice since KV of 8,192 is split every 4,096.
        {"num_qo_heads": 24, "tiles": 1_536, "tile": 64, "head_dim": 256},
        [2_147_483_648],
        2_415_919_104 + 2_415_919_104 // 256,
        2_425_356_288,
        {},
        # 7,253 tokens are 680 tiles, 1,360 with the split: 1,360 * 1,579,008 bytes fit.
        {"note": "prompts of up to 7,253 tokens fit"},
    ),
    Case(
        "Blackwellboy/model-serving-minefield#87",
        [
            (
                "server_args=ServerArgs(tp_size=1, chunked_prefill_size=8192, "
                "enable_deterministic_inference=True)"
            ),
            _config(num_attention_heads=24, num_key_value_heads=4, head_dim=256),
            "flashinfer-python==0.6.18",
            overflow("batch_prefill_tmp_v", 4_831_838_208, 2_147_483_648, line=71),
        ],
        "exact",
        # Split every 2,048 tokens: 768 tiles four times.
        {"num_qo_heads": 24, "tiles": 3_072, "tile": 64, "head_dim": 256},
        [2_147_483_648],
        4_831_838_208 + 4_831_838_208 // 256,
        4_850_712_576,
        {},
        {"note": "sets the workspace to 2,147,483,648 bytes itself"},
    ),
    Case(
        "pie-project/pie#414",
        [
            "fire_batch failed on NVIDIA L40S",
            _config(num_attention_heads=32, num_key_value_heads=8, head_dim=128),
            overflow("batch_prefill_tmp_s", 524_288, 0),
        ],
        "exact",
        # 32 * 32 * 128 floats; tmp_v before it took 32 * 32 * 128 * 128 * 4 = 64 MiB.
        {"num_qo_heads": 32, "tiles": 32, "tile": 128, "head_dim": 128},
        [67_108_864],
        67_108_864 + 524_288,
        # 142 SMs: up to 2 * 142 / 8 = 35 tiles, 73,400,320 + 573,440.
        73_973_760,
        {},
    ),
    Case(
        "public report 1",
        [
            "flashinfer-python==0.6.14",
            _config(num_attention_heads=24, num_key_value_heads=4, head_dim=256),
            overflow("batch_prefill_tmp_v", 528_482_304, 402_653_184),
        ],
        "exact",
        # 512 * 6 / 64 = 48 tiles, split seven times.
        {"num_qo_heads": 24, "tiles": 336, "tile": 64, "head_dim": 256},
        [402_653_184],
        528_482_304 + 2_064_384,
        530_546_688,
        {},
        # ceil(336 * 64 / 6) = 3,584 rows: 24 * 3,584 * 257 * 4.
        {"note": "88,424,448 bytes"},
    ),
    *(
        Case(
            report,
            [old_overflow("trtllm_gen_counter_workspace", 8_388_608)],
            "consistent",
            None,
            [],
            8_388_608,
            413_138_944,
            {},
            {"layouts": ("A", "B"), "note": "8192 * 256 * 4"},
        )
        for report in (
            "flashinfer-ai/flashinfer#3114",
            "vllm-project/vllm#25520",
            "sgl-project/sglang#10330",
            "flashinfer-ai/flashinfer#3433",
        )
    ),
    Case(
        "weicj/vLLM-2080Ti-Definitive#150",
        [
            "non-default args: {'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.96}",
            out_of_memory("394.00 MiB", "286.31 MiB"),
        ],
        "consistent",
        None,
        [413_138_944],
        413_138_944,
        None,
        {},
        # 107.69 MiB of 21.66 GiB are 0.0049: the hundredth below 0.96 - 0.0049.
        {"note": "107.69 MiB", "set": ("--gpu-memory-utilization 0.95",)},
    ),
    Case(
        "public report 2",
        [
            "non-default args: {'gpu_memory_utilization': 0.97}",
            out_of_memory("394.00 MiB", "379.69 MiB", "31.36 GiB"),
        ],
        "consistent",
        None,
        [413_138_944],
        413_138_944,
        None,
        {},
        {"note": "14.31 MiB", "set": ("--gpu-memory-utilization 0.96",)},
    ),
    Case(
        "vllm-project/vllm#42539",
        [locked("trtllm_ragged.py:157:_run_prefill", "394.00", "0.00")],
        "exact",
        None,
        [],
        413_138_944,
        None,
        {},
    ),
    Case(
        "sgl-project/sglang#15089",
        [
            "server_args=ServerArgs(attention_backend='trtllm_mha')",
            out_of_memory("512.00 MiB", "100.00 MiB"),
        ],
        "consistent",
        None,
        [536_870_912],
        536_870_912,
        None,
        {},
    ),
)
