"""The plugin inside real SGLang 0.5.23.

Real are: `sglang.srt.plugins.load_plugins` and `HookRegistry`; `ServerArgs`, `publish` and
`get_parallel`; the class `ModelRunner`; `runtime_context.get_buffer`, the factory of the workspaces
`trtllm_mla_zero_workspace`, `trtllm_mha_zero_workspace`, `dsa_trtllm_workspace` and
`trtllm_dsv4_zero_workspace`, as the modules of the backends have bound it.
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
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"


@pytest.fixture
def worker(environment: Path, run: Callable[..., Ran]) -> Callable[..., Ran]:
    """`worker(scenario)`: a scheduler's worker through its start-up."""

    def start(scenario: str, *options: str, **environ: str) -> Ran:
        sources = str(environment / "sglang-0.5.23")
        return run("sglang_worker.py", sources, scenario, *options, **environ)

    return start


def sites(ran: Ran) -> dict[str, dict[str, Any]]:
    """The planned sites of the one worker, by name."""
    (document,) = ran.told["built"]
    return {planned["workspace"]: planned for planned in document["planned"]}


@pytest.mark.parametrize("order", ["plugin-first", "runner-first"])
def test_sglangs_own_loader_and_registry_put_the_hooks_in_place(
    worker: Callable[..., Ran], order: str
) -> None:
    ran = worker("mla", order)
    told = ran.told
    assert told["loaded"]
    # The registry would import what it hooks; a detokenizer has no use for a model runner.
    assert told["runner_imported"] == (order == "runner-first")
    assert told["hooked"] == [f"{RUNNER}.__init__", f"{RUNNER}.init_attention_backends"]
    assert told["sources"] == ["ws_guard"]
    assert told["plugins_only"] == []
    (made,) = told["made"]
    assert (made["engine"], made["rank"], made["expected_workers"]) == ("0", "1", 8)
    assert (
        made["info"].items()
        >= {
            "engine_name": "sglang",
            "engine_version": "0.5.23",
            "tp": "8",
            "dcp": "8",
        }.items()
    )
    assert made["planned"] is None
    assert ran.said() == []


def test_mla_decode_under_dcp_and_prefix_chunks_are_judged(worker: Callable[..., Ran]) -> None:
    ran = worker("mla")
    planned = sites(ran)
    assert set(planned) == {"trtllm_mla_decode", "trtllm_mla_prefix"}
    decode, prefix = planned["trtllm_mla_decode"], planned["trtllm_mla_prefix"]
    # 149 MiB / (8 bytes x 128 heads x 256 slots) = 596 rows.
    assert (decode["kernel_heads"], decode["lse"]) == (128, True)
    assert (decode["overflow_threshold_batch"], decode["planned_batch"]) == (596, 597)
    # 149 MiB / (8 bytes x 16 heads x 8,192 slots) = 149 rows.
    assert (prefix["kernel_heads"], prefix["max_q_len"]) == (16, 8192)
    assert prefix["overflow_threshold_batch"] == 149
    assert {site["workspace_bytes"] for site in planned.values()} == {150 * MIB}
    health = ran.told["health"]["planned_fits"]
    assert health.startswith("fail")
    # No variable changes the size: the only way out is said.
    assert "keep steps to 596 rows" in health
    assert ran.told["names"] == {
        "decode": "trtllm_mla_decode",
        "ragged": "trtllm_mla_prefix",
        "context": "",
        "dsv4": "",
    }


def test_dsa_cuts_its_rows_itself_and_is_shown(worker: Callable[..., Ran]) -> None:
    ran = worker("dsa")
    dsa = sites(ran)["dsa"]
    assert dsa["workspace_bytes"] == 8 * 384 * MIB
    assert (dsa["lse"], dsa["kernel_heads"], dsa["fits"]) == (True, 128, True)
    assert ran.told["health"]["planned_fits"].startswith("ok")
    assert ran.told["names"]["decode"] == "dsa"


@pytest.mark.parametrize(
    ("scenario", "site", "size"),
    [("mha", "trtllm_mha_decode", 512 * MIB), ("dsv4", "dsv4", 128 * MIB)],
)
def test_sites_without_lse_fit(
    worker: Callable[..., Ran], scenario: str, site: str, size: int
) -> None:
    ran = worker(scenario)
    planned = sites(ran)[site]
    assert (planned["workspace_bytes"], planned["lse"], planned["fits"]) == (size, False, True)
    assert site in ran.told["names"].values()
    assert ran.told["health"]["planned_fits"].startswith("ok")


def test_engine_without_a_workspace_says_so_and_is_ready(worker: Callable[..., Ran]) -> None:
    ran = worker("none")
    (document,) = ran.told["built"]
    assert document["planned"] == []
    assert ran.told["health"]["planned_fits"] == "ok the engine uses no trtllm-gen workspace"


# -- deduplicated graphs ---------------------------------------------------------------------------


@pytest.fixture
def dedup(environment: Path, run: Callable[..., Ran]) -> Callable[..., Ran]:
    """`dedup(change)`: two graphs of the same nodes in SGLang's own registry, replayed."""
    return lambda *how: run("sglang_dedup.py", str(environment / "sglang-0.5.23"), *how)


def test_replays_of_deduplicated_graphs_count(dedup: Callable[..., Ran]) -> None:
    told = dedup().told
    # One executable serves both; torch replays neither.
    assert (told["executables"], told["launched"]) == (1, 1_000 + 10 + 10)
    assert told["captured"] == {"16": 2, "32": 2}
    assert told["replayed"] == {"16": 2 * (1_000 + 10), "32": 2 * 10}
    assert (told["errors"], told["problems"]) == (0, [])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("other name", "KeyError: 'replay'"),
        ("no original", "TypeError: a graph of theirs does not say"),
    ],
)
def test_registry_that_is_not_as_known_is_a_problem(
    dedup: Callable[..., Ran], how: str, words: str
) -> None:
    told = dedup(how).told
    assert (told["launched"], told["errors"]) == (1_020, 0)
    assert told["replayed"] == {"16": 0, "32": 0}
    (problem,) = told["problems"]
    assert problem.startswith("replays of deduplicated graphs are not counted (")
    assert words in problem
