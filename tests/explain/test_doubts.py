"""Logs that mislead: flags of another process, code that only mentions a workspace, odd numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from messages import CRASH, HEADS, SGLANG, VLLM, out_of_memory, overflow
from solutions import triples

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]
    Explain = Callable[..., list[Finding]]

ENGINE = '  File "/x/vllm/v1/attention/backends/mla/flashinfer_mla.py", line 320, in forward_mqa'


def start(**flags: int) -> str:
    return f"INFO non-default args: { {'model_tag': 'org/m', **flags} }"


GATHERED = start(
    tensor_parallel_size=8, decode_context_parallel_size=8, max_num_batched_tokens=16_384
)
OTHER = start(tensor_parallel_size=4, max_num_batched_tokens=8_192)


@pytest.mark.parametrize(
    "lines",
    [
        [GATHERED, HEADS, OTHER, CRASH],
        [OTHER, HEADS, GATHERED, CRASH],
        [GATHERED, HEADS, CRASH, OTHER],
    ],
    ids=["before", "after", "behind"],
)
def test_a_call_of_any_of_two_servers(lines: list[str], explain_one: ExplainOne) -> None:
    found = explain_one(lines)
    # 64 / 8 * 8 heads of the one; tp 4 with the other's dcp 8 is no deployment.
    assert (64, 12_288, 1) in triples(found)
    assert all(each.num_qo_heads <= 64 for each in found.solutions)
    assert found.confidence == "consistent"
    # Of the larger steps: 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB.
    assert found.recommended_workspace_bytes == 2_561_671_168


@pytest.mark.parametrize(
    "lines",
    [
        ["INFO uses 16 attention heads per rank after TP", GATHERED, "max_num_seqs=24"],
        [start(tensor_parallel_size=7, decode_context_parallel_size=7), HEADS],
        [GATHERED.replace("16384", "1024"), HEADS],
    ],
    ids=["heads", "ranks", "tokens"],
)
def test_what_cannot_be_of_this_process_is_set_aside(
    lines: list[str], explain_one: ExplainOne
) -> None:
    found = explain_one([*lines, CRASH])
    assert found.confidence == "consistent"
    assert (64, 12_288, 1) in triples(found)
    assert any("left aside" in note for note in found.notes)
    assert not any("not in the log: tp" in note for note in found.notes)


def test_hundreds_of_starts(explain_one: ExplainOne) -> None:
    starts = [
        f"tensor_parallel_size={n} decode_context_parallel_size={n} num_attention_heads={n}"
        for n in range(1, 400)
    ]
    found = explain_one([*starts, GATHERED, HEADS, CRASH])
    assert found.confidence == "consistent"
    assert (64, 12_288, 1) in triples(found)


def test_a_size_that_no_call_has_stays_unsolved(explain_one: ExplainOne) -> None:
    # One byte too many for 8 * 256 * heads * rows + 1 MiB.
    odd = overflow("trtllm_gen_softmax_workspace", 1_611_661_313, 404_750_336)
    assert explain_one([GATHERED, HEADS, odd]).confidence == "unsolved"


@pytest.mark.parametrize(
    ("release", "confidence"),
    [("0.7.4", "exact"), ("0.7.5", "consistent"), ("1.2.0", "consistent")],
)
def test_a_release_that_nobody_has_looked_at(
    release: str, confidence: str, explain_one: ExplainOne
) -> None:
    told = [f"flashinfer-python=={release}", GATHERED, "max_num_seqs=24", HEADS]
    found = explain_one([*told, CRASH[CRASH.index("Buffer") :]])
    assert (found.layouts, found.confidence) == (("C",), confidence)
    # Line 71 is layout C's, whatever the release.
    lined = overflow("trtllm_gen_softmax_workspace", 1_611_661_312, 404_750_336, 71)
    assert explain_one([*told, lined]).confidence == "exact"


def test_what_fits_is_not_refused(explain_one: ExplainOne) -> None:
    strange = overflow("trtllm_gen_softmax_workspace", 1_611_661_312, 2_000_000_000)
    assert explain_one([GATHERED, HEADS, strange]).confidence == "consistent"


@pytest.mark.parametrize(
    "above",
    [
        # A frame on the way hands a workspace on; the allocation is another one.
        [ENGINE, "    o = trtllm_batch_decode_with_kv_cache_mla(",
         "        workspace_buffer=self._workspace_buffer,",
         '  File "/x/flashinfer/mla.py", line 88, in trtllm_batch_decode_with_kv_cache_mla',
         "    out = torch.empty(out_shape, dtype=torch.bfloat16)"],
        [ENGINE, "    run(workspace_buffer=self._workspace_buffer)"],
        ["WARNING 07-05 _get_workspace_buffer is slow"],
        ['  File "/x/vllm/a.py", line 9, in _get_workspace_buffer', *["INFO all is well"] * 20],
    ],
    ids=["outer frame", "argument", "prose", "long ago"],
)  # fmt: skip
def test_code_that_only_mentions_a_workspace(above: list[str], explain: Explain) -> None:
    assert explain([*above, out_of_memory("20.00 MiB", "1.00 MiB")]) == []


@pytest.mark.parametrize(
    "above",
    [
        ['  File "/x/vllm/a.py", line 9, in _get_workspace_buffer', "    buffer = torch.zeros("],
        [ENGINE, "    self._workspace_buffer = torch.zeros("],
        ['  File "/x/vllm/a.py", line 9, in _get_workspace_buffer', "    buffer = torch.zeros(",
         '  File "/x/torch/utils/_device.py", line 104, in __torch_function__',
         "    return func(*args, **kwargs)"],
    ],
    ids=["function", "assignment", "torch behind it"],
)  # fmt: skip
def test_code_that_allocates_one(above: list[str], explain_one: ExplainOne) -> None:
    found = explain_one([*above, out_of_memory("256.00 MiB", "100.00 MiB")])
    assert (found.size, found.confidence) == (256 << 20, "exact")


@pytest.mark.parametrize(
    ("slab", "workspace"),
    [
        # `attention/scheduler.cuh` of 0.6.14: float_allocator and int_allocator.
        ("mla_partial_o", "float"),
        ("mla_partial_lse", "float"),
        ("mla_q_indptr", "integer"),
        ("batch_prefill_request_indices", "integer"),
    ],
)
def test_which_workspace_a_slab_stands_in(
    slab: str, workspace: str, explain_one: ExplainOne
) -> None:
    notes = explain_one([overflow(slab, 8_388_608, 4_096)]).notes
    assert any(f"the wrapper's {workspace} workspace" in note for note in notes)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (f"VLLM_FLASHINFER_WORKSPACE_BUFER_SIZE={2 << 30} vllm serve org/m -tp 8", VLLM),
        (
            "WARNING Unknown vLLM environment variable detected: VLLM_FLASHINFER_WORKSPACE_SIZE",
            VLLM,
        ),
        ("export SGLANG_FLASHINFER_WORKSPAEC_SIZE='536870912'", SGLANG),
        # vLLM's own constants, and a variable of FlashInfer's that is none of sizes.
        ("    FLASHINFER_WORKSPACE_BUFFER_SIZE = 256 * 1024 * 1024", None),
        ("FLASHINFER_WORKSPACE_BASE=/root", None),
        ("FLASHINFER_MLA_WORKSPACE_BUFFER_SIZE=134217728", None),
        ("FLASHINFER_MLA_LSE_WORKSPACE_BUFFER_SIZE: 268435456", None),
        (f"{VLLM}=413138944", None),
        # The right one is set, too.
        (f"VLLM_FLASHINFER_WORKSPACE_BUFER_SIZE=1 {VLLM}=413138944", None),
    ],
)
def test_a_misspelt_variable(line: str, meant: str | None, explain_one: ExplainOne) -> None:
    told = [note for note in explain_one([line, CRASH]).notes if "did you mean" in note]
    if meant is None:
        assert told == []
    else:
        (note,) = told
        assert note.endswith(f"did you mean {meant}?")


def test_many_misspelt_variables(explain_one: ExplainOne) -> None:
    names = [VLLM.replace("BUFFER", "BUFFER" + chr(ord("A") + n)) for n in range(20)]
    notes = explain_one([*(f"{name}=1" for name in names), CRASH]).notes
    assert len([note for note in notes if "did you mean" in note]) == 8
    # 20 - 8
    assert "and 12 such names more" in notes


def test_a_terminal_that_broke_words(explain_one: ExplainOne) -> None:
    for width in range(40, 120, 7):
        lines = [CRASH[at : at + width] for at in range(0, len(CRASH), width)]
        found = explain_one(lines)
        assert (found.size, found.available) == (1_611_661_312, 404_750_336), width
