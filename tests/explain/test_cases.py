"""The reported crash and its neighbours: how sure the answer is, and on what it rests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from formats import FORMATS, vllm
from messages import COUNTER_CHECK, UNNAMED, locked, out_of_memory, overflow, short_counter

from ws_guard.explain.logs import explain_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]
    Explain = Callable[..., list[Finding]]

STATS = "trtllm_gen_softmax_workspace"
CRASH = overflow(STATS, 1_611_661_312, 404_750_336)
#: The same without the line of allocator.h.
BARE = CRASH[CRASH.index("Buffer") :]
VLLM = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
FLAGS = (
    "vllm serve GLM --tensor-parallel-size 8 --decode-context-parallel-size 8 "
    "--max-num-batched-tokens 16384"
)
HEADS = '"num_attention_heads": 64,'


def triples(found: Finding) -> set[tuple[int, int | None, int | None]]:
    return {(each.num_qo_heads, each.batch_size, each.max_q_len) for each in found.solutions}


@pytest.mark.parametrize("wrap", FORMATS, ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize(
    "told",
    [
        [FLAGS, HEADS],
        ["vllm serve GLM -tp 8 -dcp=8 --max-num-batched-tokens 16384", HEADS],
        ["vllm serve GLM -tp 8 \\", "  -dcp 8 --max-num-batched-tokens 16384", HEADS],
        ["tp=8 dcp=8 max_num_batched_tokens=16384", "64 heads"],
        [
            (
                "(APIServer pid=1) INFO 07-05 11:59:58 [utils.py:253] non-default args: "
                "{'model': 'G', 'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, "
                "'max_num_batched_tokens': 16384}"
            ),
            HEADS,
        ],
        [
            (
                "Initializing a V1 LLM engine (v0.26.0) with config: tensor_parallel_size=8, "
                "decode_context_parallel_size=8, max_num_batched_tokens=16,384"
            ),
            "num_attention_heads=64",
        ],
    ],
    ids=["long", "short", "continued", "spoken", "banner", "config"],
)
def test_the_reported_crash_is_exact(
    told: list[str], wrap: Callable[[list[str]], bytes], explain_one: ExplainOne
) -> None:
    found = explain_one([*told, CRASH], wrap)
    assert found.confidence == "exact", found.notes
    # 64 / 8 * 8 heads; (1,611,661,312 - 1 MiB) / (8 * 64 * 256) rows; two tokens a row would be
    # 24,576 of the 16,384 that a step has.
    assert triples(found) == {(64, 12_288, 1)}
    assert found.layouts == ("B",)
    assert found.workspace_bytes == (404_750_336 + 8_388_608,)
    # (404,750,336 - 1 MiB) / (8 * 64 * 256) = 3,080.0.
    assert found.overflow_threshold_batch == 3_080
    # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB.
    assert found.recommended_workspace_bytes == 2_561_671_168
    assert found.env == {VLLM: "2561671168"}
    assert any("from 0.30.0 on sizes it itself" in note for note in found.notes)


def test_the_numbers_alone_are_consistent(explain_one: ExplainOne) -> None:
    found = explain_one([BARE])
    assert found.confidence == "consistent"
    assert set(found.layouts) == {"A", "B", "C"}
    # 386 MiB, if nothing was carved before.
    assert found.workspace_bytes == (413_138_944, 404_750_336)
    assert (64, 12_288, 1) in triples(found)
    assert found.overflow_threshold_batch is None
    assert any("not in the log: the model's heads" in note for note in found.notes)
    assert found.env == {}


@pytest.mark.parametrize(("line", "layouts"), [(49, {"A", "B"}), (71, {"C"})], ids=["49", "71"])
def test_the_line_tells_the_layout(line: int, layouts: set[str], explain_one: ExplainOne) -> None:
    found = explain_one([overflow(STATS, 1_611_661_312, 404_750_336, line)])
    assert set(found.layouts) == layouts
    assert found.confidence == "consistent"


def test_a_version_tells_the_layout(explain_one: ExplainOne) -> None:
    found = explain_one(["flashinfer-python==0.6.15.post1", BARE])
    assert (found.layouts, found.workspace_bytes) == (("C",), (404_750_336,))


def test_line_and_version_that_do_not_agree(explain_one: ExplainOne) -> None:
    found = explain_one(["flashinfer-python==0.7.4", CRASH])
    assert set(found.layouts) == {"A", "B"}
    assert any("do not agree" in note for note in found.notes)


def test_candidates_are_ranked(explain_one: ExplainOne) -> None:
    found = explain_one([overflow(STATS, 470_810_624, 413_138_944)[60:]])
    assert found.confidence == "consistent"
    # (470,810,624 - 1 MiB) / (8 * 256) = 229,376 heads * rows.
    assert [(each.num_qo_heads, each.batch_size) for each in found.solutions[:3]] == [
        (64, 3_584),
        (128, 1_792),
        (32, 7_168),
    ]
    by_padding = [each for each in found.solutions if each.lowest_q_len == 1]
    # Layout A has no padding: its products, 58,851,328 = 470,810,624 / 8, come last.
    products = {each.num_qo_heads * (each.batch_size or 0) for each in by_padding[:10]}
    assert products == {229_376}
    assert found.workspace_bytes == (413_138_944, 421_527_552)


def test_two_values_in_a_log_are_not_exact(explain_one: ExplainOne) -> None:
    found = explain_one(["vllm serve A --tensor-parallel-size 4", FLAGS, HEADS, CRASH])
    assert found.confidence == "consistent"
    assert any("several values of tp" in note for note in found.notes)


def test_without_tokens_it_is_not_exact(explain_one: ExplainOne) -> None:
    found = explain_one(["non-default args: {'tensor_parallel_size': 8}", HEADS, CRASH])
    # tp 8 and no DCP: 8 heads, and nobody but the ragged prefill asks for LSE.
    assert found.confidence == "consistent"
    assert {each.num_qo_heads for each in found.solutions} == {8}


def test_ranks_are_folded_and_named(explain_one: ExplainOne) -> None:
    lines = [
        f"(Worker_TP{n}_DCP{n} pid={n}) ERROR 07-05 12:00:01 [x.py:1] {CRASH}" for n in range(12)
    ]
    lines += [f"(EngineCore pid=9) ERROR 07-05 12:00:02 [core.py:9] {CRASH}"]
    found = explain_one(lines)
    assert found.ranks == tuple(f"Worker_TP{n}_DCP{n}" for n in range(12))


def test_pods_are_told_apart(explain_one: ExplainOne) -> None:
    lines = [
        f"[pod/vllm-{pod}/engine] (Worker_TP{rank} pid=3) {CRASH}" for pod in "ab" for rank in "01"
    ]
    ranks = ("vllm-a/Worker_TP0", "vllm-a/Worker_TP1", "vllm-b/Worker_TP0", "vllm-b/Worker_TP1")
    assert explain_one(lines).ranks == ranks


def test_faults_are_told_apart(explain: Explain) -> None:
    found = explain([CRASH, overflow(STATS, 404_881_408, 404_750_336), CRASH])
    assert sorted(each.size or 0 for each in found) == [404_881_408, 1_611_661_312]


def test_a_message_that_was_cut_is_the_same_fault(explain_one: ExplainOne) -> None:
    found = explain_one([CRASH[: CRASH.index(", but only")], CRASH])
    assert found.available == 404_750_336


def test_interleaved_wrapped_messages(explain: Explain) -> None:
    """Two ranks whose messages were broken into lines, one line of each in turn."""
    parts = [
        ["Buffer overflow when allocating memory for", f"{STATS} with size {size}",
         "and alignment 16, but", f"only {404_750_336} bytes available"]
        for size in (1_611_661_312, 404_881_408)
    ]  # fmt: skip
    lines = [f"(Worker_TP{rank} pid=1) {parts[rank][step]}" for step in range(4) for rank in (0, 1)]
    found = explain(lines)
    assert {each.size: each.ranks for each in found} == {
        1_611_661_312: ("Worker_TP0",),
        404_881_408: ("Worker_TP1",),
    }


def test_traceback_names_the_site(explain_one: ExplainOne) -> None:
    trace = [
        'File "/x/vllm/v1/attention/backends/mla/prefill/trtllm_ragged.py", line 9, in run',
        "out = trtllm_ragged_attention_deepseek(",
    ]
    # 8 * 16 heads * 193 rows * 16,384 tokens + 1 MiB.
    size = 8 * 16 * 193 * 16_384 + 1_048_576
    told = ["vLLM API server version 0.26.0", "non-default args: {'tensor_parallel_size': 8}",
            '"num_attention_heads": 128', "max_num_batched_tokens=16384"]  # fmt: skip
    found = explain_one([*told, *trace, overflow(STATS, size, 404_750_336)], vllm)
    assert (16, 193, 16_192) in triples(found)
    assert {each.num_qo_heads for each in found.solutions} == {16}


def test_sglang_fixes_its_size(explain_one: ExplainOne) -> None:
    # 128 heads gathered, 597 rows: 8 * 128 * 597 * 256 + 1 MiB, of 150 MiB.
    size = 8 * 128 * 597 * 256 + 1_048_576
    told = "server_args=ServerArgs(tp_size=8, dcp_size=8, max_running_requests=1024)"
    # The prefix chunks share the buffer: without the traceback it could be theirs as well.
    lines = [told, '"num_attention_heads": 128', overflow(STATS, size, 150 << 20, 71)]
    assert explain_one(lines).confidence == "consistent"
    trace = [
        'File "/x/sglang/srt/layers/attention/trtllm_mla_backend.py", line 9, in forward_decode',
        "out = flashinfer.decode.trtllm_batch_decode_with_kv_cache_mla(",
    ]
    found = explain_one([*trace, *lines])
    assert triples(found) == {(128, 597, 1)}
    # (150 MiB - 1 MiB) / (8 * 128 * 256) = 596.0.
    assert (found.overflow_threshold_batch, found.env) == (596, {})
    assert found.set == ("--max-running-requests 596",)
    assert any("no variable changes it" in note for note in found.notes)


def test_unnamed_wording_is_unsolved(explain_one: ExplainOne) -> None:
    found = explain_one([UNNAMED])
    assert (found.confidence, found.size) == ("unsolved", None)
    assert any("names neither slab nor size" in note for note in found.notes)


def test_absurd_size_is_a_bad_plan(explain_one: ExplainOne) -> None:
    found = explain_one([overflow("batch_prefill_tmp_v", 1 << 60, 134_217_728)])
    assert found.confidence == "unsolved"
    assert found.recommended_workspace_bytes is None
    assert any("wrong lengths" in note for note in found.notes)


def test_size_that_no_call_asks_for(explain_one: ExplainOne) -> None:
    found = explain_one([overflow(STATS, 1_611_661_313, 404_750_336)])
    assert (found.confidence, found.solutions) == ("unsolved", ())


def test_slab_that_is_not_known(explain_one: ExplainOne) -> None:
    found = explain_one([overflow("batch_prefill_request_indices", 9_000_000, 8_388_608)])
    assert found.confidence == "unsolved"
    assert any("short by 611,392 bytes" in note for note in found.notes)


def test_decode_plan(explain_one: ExplainOne) -> None:
    config = '{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}'
    # 32 heads * 66,000 splits * 128 floats; tmp_s behind it.
    size = 32 * 66_000 * 128 * 4
    found = explain_one([config, overflow("batch_decode_tmp_v", size, 1 << 30)])
    assert found.confidence == "exact"
    assert (found.solutions[0].num_qo_heads, found.solutions[0].rows) == (32, 66_000)
    assert found.need_bytes == size + 32 * 66_000 * 4


def test_shared_rows_of_new_releases(explain_one: ExplainOne) -> None:
    config = '{"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256}'
    # ceil(1,023 * 16 / 16) rows: the plan of 1,023 tiles as FlashInfer reserves it since.
    size = 32 * 1_023 * 256 * 4
    lines = ["flashinfer-python==0.7.4", config, overflow("batch_prefill_tmp_v", size, 1 << 20, 71)]
    found = explain_one(lines)
    assert found.confidence == "exact"
    assert found.need_bytes == size + 32 * 1_023 * 4
    assert any(each.tiles == 1_023 and each.tile == 16 for each in found.solutions)


def test_counter_with_sizes(explain_one: ExplainOne) -> None:
    # 4 * 64 heads * 12,288 rows.
    found = explain_one([short_counter(4_096, 3_145_728)])
    assert (found.size, found.available, found.layouts) == (3_145_728, 4_096, ("C",))
    assert (64, 12_288, None) in triples(found)
    assert found.confidence == "consistent"


def test_bare_counter_check(explain_one: ExplainOne) -> None:
    found = explain_one([FLAGS, HEADS, COUNTER_CHECK])
    assert (found.kind, found.confidence, found.size) == ("counter", "unsolved", None)
    # 4 * 16,384 rows * 64 heads.
    assert any("4,194,304 bytes" in note for note in found.notes)


def test_locked_by_code_that_is_not_ours(explain_one: ExplainOne) -> None:
    found = explain_one([locked("modular_kernel.py:1167:_allocate_buffers", "146.41", "3.75")])
    assert found.confidence == "consistent"
    assert any("no workspace of FlashInfer's" in note for note in found.notes)


def test_memory_that_ran_out_elsewhere_is_not_ours(explain: Explain) -> None:
    assert explain([out_of_memory("2.00 GiB", "1.00 GiB")]) == []


def test_traceback_makes_out_of_memory_ours(explain_one: ExplainOne) -> None:
    lines = ["self._get_workspace_buffer()", out_of_memory("256.00 MiB", "100.00 MiB")]
    found = explain_one(lines)
    assert (found.size, found.confidence) == (256 << 20, "exact")


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("MESSAGE=(Worker_TP5 pid=1) ", "Worker_TP5"),
        ("[1,3]<stderr>: ", "rank 3"),
        ("[rank7]: ", "rank 7"),
        ("[default6]:", "rank 6"),
        ("[2025-11-20 16:40:55 DP1 TP3] ", "DP1 TP3"),
        ("(RayWorkerWrapper pid=206994, ip=10.1.2.3) ", "RayWorkerWrapper pid=206994"),
        ("(VLLM pid=1) (VllmWorkerProcess pid=2) ", "VllmWorkerProcess pid=2"),
        ("(VllmWorker rank=1 pid=477) ERROR 07-22 12:55:39 [x.py:618] ", "VllmWorker rank=1"),
        ("engine-1  | (EngineCore_DP0 pid=3) ", "EngineCore_DP0"),
    ],
)
def test_names_of_ranks(prefix: str, rank: str, explain_one: ExplainOne) -> None:
    found = explain_one([prefix + CRASH])
    assert [name.rpartition("/")[2] for name in found.ranks] == [rank]


def test_message_inside_json_inside_json(explain_one: ExplainOne) -> None:
    inner = json.dumps({"message": "worker failed", "exc_info": f"Traceback\n  File x\n{CRASH}"})
    outer = {"kubernetes": {"pod_name": "p-0"}, "log": f"{inner}\n", "stream": "stderr"}
    found = explain_one([json.dumps(outer)])
    assert (found.size, found.ranks) == (1_611_661_312, ("p-0",))


def test_model_as_people_write_it(explain_one: ExplainOne) -> None:
    # 2 * 148 / 8 tiles of 128 rows.
    message = overflow("batch_prefill_tmp_v", 64 * 37 * 128 * 128 * 4, 134_217_728)
    for words in ("64/8, D=128", "64 q / 8 kv heads, D=128"):
        found = explain_one([f"on a B200 with {words}", message])
        assert (found.confidence, found.solutions[0].tiles) == ("exact", 37)


@pytest.mark.parametrize("shared", [True, False])
def test_installed_header_decides_between_formulas(
    shared: bool, explain_one: ExplainOne, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds of 0.7.0 and 0.7.1 carry either: the header of the very build tells."""
    site = tmp_path / "site"
    header = site / "flashinfer/data/include/flashinfer/attention/scheduler.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("const size_t max_partial_rows = 1;" if shared else "")
    (site / "flashinfer_python-0.7.1.dist-info").mkdir()
    metadata = site / "flashinfer_python-0.7.1.dist-info" / "METADATA"
    metadata.write_text("Name: flashinfer-python\nVersion: 0.7.1\n")
    config = '{"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256}'
    message = overflow("batch_prefill_tmp_v", 24 * 3_584 * 256 * 4, 1 << 20, line=71)
    lines = ["flashinfer-python==0.7.1", config, message]
    assert explain_one(lines).confidence == "consistent"
    monkeypatch.syspath_prepend(str(site))
    found = explain_one(lines)
    assert found.confidence == "exact"
    # ceil(336 * 64 / 6) rows, or 56 tiles of 64.
    assert {(each.tiles, each.tile) for each in found.solutions} >= {
        (336, 64) if shared else (56, 64)
    }


def test_memory_for_a_raised_workspace(explain_one: ExplainOne) -> None:
    # 2,561,671,168 bytes are 2.3857 GiB.
    lines = [f"{VLLM}=2561671168", out_of_memory("2.39 GiB", "1.00 GiB", "178.35 GiB")]
    found = explain_one(lines)
    assert (found.size, found.confidence) == (2_561_671_168, "consistent")
    assert any("short by 1,487,929,344 B" in note for note in found.notes)


def test_variable_that_was_overridden(explain_one: ExplainOne) -> None:
    found = explain_one([f"{VLLM}=1073741824", CRASH])
    assert any("it was overridden" in note for note in found.notes)


def test_config_of_the_hub_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"num_attention_heads": 64, "hidden_size": 4096}')
    (tmp_path / "log").write_text(f"{FLAGS.replace('GLM', 'org/model')}\n{CRASH}\n")
    (without,) = explain_log(str(tmp_path / "log"), {"HF_HUB_CACHE": "/nowhere"})
    assert without.confidence == "consistent"
    (found,) = explain_log(str(tmp_path / "log"), {"HF_HUB_CACHE": str(tmp_path / "hub")})
    assert (found.confidence, triples(found)) == ("exact", {(64, 12_288, 1)})
    assert any("64 heads by the config of org/model" in note for note in found.notes)


def test_nothing_known(explain: Explain) -> None:
    assert explain(["INFO all is well", "and alignment, AlignedAllocator, out of memory"]) == []
