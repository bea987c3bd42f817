"""The plugin inside real vLLM: 0.33.0 sizes its sparse workspace, 0.26.0 does not.

16 heads per rank, DCP 8: 8 bytes x 128 heads x 256 slots = 262,144 bytes of stats for each token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Ran

pytestmark = pytest.mark.engine

MIB = 1 << 20
ENV = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
TOKENS = 512
#: 394 MiB + 512 tokens x 262,144 bytes + 1 MiB.
COMPUTED = 548_405_248
OLD = "0.26.0"


@pytest.fixture
def worker(environment: Path, run: Callable[..., Ran]) -> Callable[..., Ran]:
    """`worker(release, tokens)`: a worker of that vLLM through its start-up."""

    def start(release: str, tokens: int = TOKENS, **environ: str) -> Ran:
        sources = [] if release == "0.33.0" else [str(environment / f"vllm-{release}")]
        return run("vllm_worker.py", str(tokens), *sources, **environ)

    return start


def site(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The one planned site of the one worker."""
    (document,) = documents
    (planned,) = document["planned"]
    assert planned["workspace"] == "sparse_mla"
    return planned


@pytest.mark.parametrize("release", ["0.33.0", OLD])
def test_planned_margin_is_that_of_the_buffer_that_was_allocated(
    worker: Callable[..., Ran], release: str
) -> None:
    ran = worker(release)
    told = ran.told
    assert told["allocated"] == COMPUTED == 394 * MIB + TOKENS * 262_144 + MIB
    assert told["zeroed"]
    assert told["names"] == {"decode": "sparse_mla", "context": "", "ragged": "", "dsv4": ""}
    for stage in ("made", "built", "warm"):
        planned = site(told[stage])
        assert planned["workspace_bytes"] == COMPUTED
        assert planned["slabs"]["softmax_stats"] == TOKENS * 262_144 + MIB
        assert planned["margin_bytes"] == COMPUTED - planned["need_bytes"] > 0
        assert (planned["kernel_heads"], planned["planned_batch"]) == (128, TOKENS)
        assert (planned["fits"], planned["env"]) == (True, {})
    assert ran.said() == []
    assert told["health"]["planned_fits"] == "ok the worst planned step fits"
    assert told["health"]["contract_known"] == "ok"
    assert told["health"]["workers_reporting"] == "fail 1 of 8 expected workers report"


def test_only_a_process_that_makes_a_worker_is_on_the_board(worker: Callable[..., Ran]) -> None:
    told = worker("0.33.0").told
    assert told["plugins_only"] == told["imports_only"] == []
    assert "flashinfer" not in told["early"]
    assert "vllm.v1.worker.worker_base" not in told["early"]
    assert told["returned"] == 7
    (document,) = told["made"]
    assert (document["engine"], document["rank"], document["expected_workers"]) == ("2", "3", 8)
    info = document["info"]
    assert (
        info.items()
        >= {
            "engine_name": "vllm",
            "engine_version": "0.33.0",
            "flashinfer_version": "0.7.2.post1",
            "model_name": "deepseek",
            "tp": "8",
            "dcp": "8",
        }.items()
    )
    (warm,) = told["warm"]
    assert warm["info"]["device"] == "cpu"
    assert warm["problems"] == []


def test_forked_workers_attach_although_vllm_does_not_call_the_plugin_again(
    run: Callable[..., Ran],
) -> None:
    told = run("fork.py").told
    assert [document["rank"] for document in told["attached"]] == ["0", "1", "2"]
    assert {document["engine"] for document in told["attached"]} == {"2"}
    assert told["afterwards"] == []


def test_smaller_explicit_value_is_respected_judged_and_not_ready(
    worker: Callable[..., Ran],
) -> None:
    given = 100 * MIB
    ran = worker(OLD, **{ENV: str(given)})
    assert ran.told["allocated"] == given
    planned = site(ran.told["warm"])
    assert planned["workspace_bytes"] == given
    # 100 MiB hold 399 rows of 262,144 bytes beside the guard of 1 MiB and, in layout B, the
    # counter; this environment's FlashInfer carves by layout C: 99 MiB / 262,144 = 396.
    assert planned["overflow_threshold_batch"] == 396
    assert (planned["fits"], planned["reasons"]) == (False, ["overflow"])
    assert planned["env"] == {ENV: str(COMPUTED)}
    assert ran.told["health"]["planned_fits"].startswith("fail engine 2 rank 3: sparse_mla:")
    assert f"set {ENV}={COMPUTED}" in ran.told["health"]["planned_fits"]
    (warning,) = ran.said()
    assert f"{ENV}={given}" in warning
    assert f"set {ENV}={COMPUTED}" in warning
    (document,) = ran.told["warm"]
    assert any(f"set {ENV}={COMPUTED}" in problem for problem in document["problems"])


def test_newer_release_with_a_smaller_explicit_value_is_not_ready_either(
    worker: Callable[..., Ran],
) -> None:
    ran = worker("0.33.0", **{ENV: str(100 * MIB)})
    planned = site(ran.told["warm"])
    assert (ran.told["allocated"], planned["fits"]) == (100 * MIB, False)
    assert planned["env"] == {ENV: str(COMPUTED)}
    assert ran.told["health"]["planned_fits"].startswith("fail")


def test_sizing_off_leaves_vllms_own_buffer_and_says_that_it_is_too_small(
    worker: Callable[..., Ran],
) -> None:
    # 16,384 tokens x 262,144 bytes are far beyond 394 MiB.
    ran = worker(OLD, 16_384, WS_GUARD_SIZING="off")
    assert ran.told["allocated"] == 394 * MIB
    planned = site(ran.told["warm"])
    assert (planned["workspace_bytes"], planned["fits"]) == (394 * MIB, False)
    # (394 - 1) MiB / 262,144: the limit of layout C.
    assert planned["overflow_threshold_batch"] == 1_572
    assert planned["recommended_workspace_bytes"] == 394 * MIB + 16_384 * 262_144 + MIB
    assert ran.said() == []


def test_switched_off_nothing_is_touched(worker: Callable[..., Ran]) -> None:
    ran = worker(OLD, WS_GUARD_ENABLED="0")
    assert ran.told["allocated"] == 394 * MIB
    assert ran.told["warm"] == []
    assert ran.said() == []


def test_board_that_cannot_be_used_harms_nothing(worker: Callable[..., Ran]) -> None:
    ran = worker("0.33.0", WS_GUARD_BOARD="/proc/ws_guard")
    assert (ran.told["allocated"], ran.told["warm"]) == (COMPUTED, [])
