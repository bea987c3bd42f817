"""Real launch lines: what is read of each, the plan that follows, and what mends it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ws_guard.engine_planning import EnginePlan, plan_launch
from ws_guard.engines.reader import Asked, read_launch

from .launch_lines import SGLANG_CASES, SGLANG_VARIABLE, VLLM_CASES, VLLM_VARIABLE, Case


def planned(case: Case, hub: Path, *, engine: str) -> EnginePlan:
    asked = Asked(engine=engine, engine_version=case.version)
    launch, notes = read_launch(asked, shlex.split(case.line), {"HF_HUB_CACHE": str(hub)})
    return plan_launch(launch, notes=notes)


def check(case: Case, result: EnginePlan, variable: str) -> None:
    told = result.as_dict()["launch"]
    assert told == {
        "engine": result.launch.engine,
        "version": case.version,
        "model": case.model,
        "attention": case.kind,
        "heads": case.heads,
        "tp": case.tp,
        "dcp": case.dcp,
        "pcp": case.pcp,
        "dp": case.dp,
        "max_num_batched_tokens": case.tokens,
        "max_num_seqs": case.seqs,
        "workspace_bytes": case.workspace,
    }
    assert result.plan.fits is case.fits
    assert result.plan.env == ({} if case.env is None else {variable: case.env})
    live = {str(site["workspace"]): site for site in result.plan.sites if site["live"]}
    if case.site is None:
        assert live == {}
        assert any("uses no trtllm-gen workspace" in note for note in result.plan.notes)
        return
    site = live[case.site]
    assert (site["kernel_heads"], site["overflow_threshold_batch"]) == (
        case.kernel_heads,
        case.threshold,
    )


@pytest.mark.parametrize("case", VLLM_CASES, ids=[case.line for case in VLLM_CASES])
def test_vllm(case: Case, hub: Path) -> None:
    check(case, planned(case, hub, engine="vllm"), VLLM_VARIABLE)


@pytest.mark.parametrize("case", SGLANG_CASES, ids=[case.line for case in SGLANG_CASES])
def test_sglang(case: Case, hub: Path) -> None:
    check(case, planned(case, hub, engine="sglang"), SGLANG_VARIABLE)


FAILING = [case for case in (*VLLM_CASES, *SGLANG_CASES) if not case.fits]


@pytest.mark.parametrize("case", FAILING, ids=[case.line for case in FAILING])
def test_what_the_plan_says_to_type_makes_the_launch_fit(case: Case, hub: Path) -> None:
    engine = "sglang" if "sglang" in case.line else "vllm"
    typed = planned(case, hub, engine=engine).typed
    assert typed
    # Before the command or behind it, where a repeated flag's last value counts.
    environ = [line for line in typed if not line.startswith(("-", "unset "))]
    flags = [line for line in typed if line.startswith("-")]
    taken_away = [line.removeprefix("unset ") for line in typed if line.startswith("unset ")]
    words = [word for word in shlex.split(case.line) if word.partition("=")[0] not in taken_away]
    line = " ".join([*environ, shlex.join(words), *flags])
    assert planned(case._replace(line=line), hub, engine=engine).plan.fits


def test_kv_tokens_lost(hub: Path) -> None:
    # 78 layers of 576 FP8 elements, 128 index bytes and a scale: 78 * (576 + 132) = 55,224 bytes
    # for a token; 2,148,532,224 / 55,224 rounds up to 38,906, spread over 8 ranks
    assert planned(VLLM_CASES[0], hub, engine="vllm").kv_tokens_lost == 38_906 * 8
