"""What to set, what it costs, and what no variable mends."""

from __future__ import annotations

from typing import Any

from ws_guard.engine_planning import EnginePlan, plan_launch
from ws_guard.engines.launch import Launch
from ws_guard.engines.model import model_of

from .models import CONFIGS

MIB = 1 << 20
VARIABLE = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"


def plan(model: str, version: str, engine: str = "vllm", **changes: Any) -> EnginePlan:
    limits = {"max_num_batched_tokens": 16_384, "max_num_seqs": 1_024}
    launch = Launch(engine, version, model_of(model, CONFIGS[model]), **{**limits, **changes})
    return plan_launch(launch)


def extra(result: EnginePlan) -> dict[str, int]:
    return {
        str(site["workspace"]): int(str(site["extra_bytes_per_gpu"]))
        for site in result.plan.sites
        if site["extra_bytes_per_gpu"]
    }


def test_raising_the_variable_costs_every_live_reader() -> None:
    # 0.29.0 does not size the sparse workspace, and GLM's prefill reads the variable as well
    result = plan("zai/glm", "0.29.0", tp=8, dcp=8)
    assert result.plan.env == {VARIABLE: "2561671168"}
    more = 2_561_671_168 - 413_138_944
    assert extra(result) == {"sparse_mla": more, "mla_prefill_ragged": more}
    assert result.plan.extra_bytes_per_gpu == 2 * more
    assert "read at up to five places" in result.plan.notes[-2]


def test_sites_of_one_buffer_count_once() -> None:
    result = plan("meta/llama", "0.26.0", tp=8, dcp=8, max_num_seqs=4_096)
    size = 394 * MIB + 8 * 64 * 4_096 * 256 + MIB
    assert result.plan.env == {VARIABLE: str(size)}
    assert extra(result) == {"dense_decode": size - 394 * MIB}


def test_a_variable_that_even_the_engine_s_own_size_needs() -> None:
    # 128 heads on one rank: the ragged prefill needs 394 MiB + 8 * 128 * 1,024 * 2,048 + 1 MiB,
    # more than the sparse site's own 394 MiB without DCP
    config = {**CONFIGS["zai/glm"], "num_attention_heads": 128}
    launch = Launch("vllm", "0.33.0", model_of("m", config), max_num_batched_tokens=16_384,
                    max_num_seqs=1_024, workspace_bytes=64 * MIB)  # fmt: skip
    result = plan_launch(launch)
    assert result.plan.env == {VARIABLE: str(394 * MIB + 8 * 128 * 1_024 * 2_048 + MIB)}


def test_fixed_sizes_name_the_flag() -> None:
    notes = plan("deepseek/r1", "0.26.0", tp=8, dcp=8).plan.notes
    assert (
        "mla_decode: its 268,435,456 bytes are fixed, no variable helps: --max-num-seqs 988 fits"
        in notes
    )


def test_sglang_names_its_own_flags() -> None:
    result = plan("deepseek/r1", "0.5.23", "sglang", tp=8, dcp=8, max_num_seqs=4_096)
    notes = "\n".join(result.plan.notes)
    assert "--max-running-requests 596 fits" in notes
    assert "--prefill-max-requests 74 fits" in notes
    assert result.plan.env == {}


def test_grid_limit_is_mended_by_tokens_alone() -> None:
    result = plan("deepseek/v4", "0.33.0", tp=8, max_num_batched_tokens=70_000)
    assert (result.plan.reasons, result.plan.env) == (["grid_limit"], {})
    assert "lower --max-num-batched-tokens to 65535" in result.plan.notes[-1]


def test_heads_that_do_not_divide_are_said() -> None:
    notes = plan("zai/glm", "0.33.0", tp=6).plan.notes
    assert any(note.startswith("64 heads do not divide by 6 ranks") for note in notes)
