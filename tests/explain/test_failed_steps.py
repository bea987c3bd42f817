"""Steps that the engine core put down: those of this fault, and those of other failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from messages import CRASH, STATS, VLLM, failed_step, overflow
from solutions import triples

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]

START = "(APIServer pid=1) INFO 07-05 11:59:58 [utils.py:253] vLLM API server version 0.26.0"
TOLD = [
    START,
    (
        "(APIServer pid=1) INFO 07-05 11:59:58 [utils.py:253] non-default args: {'model_tag': "
        "'m/x', 'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, 'max_num_seqs': 24, "
        "'max_num_batched_tokens': 16384}"
    ),
]
CORE = "(EngineCore pid=176) ERROR 07-05 12:00:02 [core.py:900] "
WORKER = "(Worker_TP3 pid=203) ERROR 07-05 12:00:01 [multiproc_executor.py:825] "
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
OTHER = "torch.OutOfMemoryError: unrelated"
#: What the dump begins with: no start of an engine.
CONFIG = f"{CORE}Dumping input data for V1 LLM engine (v0.26.0) with config: model='m/x', "


@pytest.mark.parametrize(
    "lines",
    [
        [WORKER + CRASH, CONFIG, failed_step(12_288), CORE + CRASH, DEAD],
        # One process: the dump comes before the error.
        [CONFIG, failed_step(12_288), "(EngineCore pid=176) " + CRASH],
        [failed_step(16_384), OTHER, START, WORKER + CRASH, failed_step(12_288), CORE + CRASH],
        [WORKER + CRASH, failed_step(12_288), CORE + CRASH[: CRASH.index("1611661312") + 4]],
        [WORKER + CRASH, failed_step(12_288), DEAD, START, failed_step(16_384), OTHER],
    ],
    ids=["workers", "one process", "another start before", "cut", "another start behind"],
)
def test_the_step_of_this_fault(lines: list[str], explain_one: ExplainOne) -> None:
    found = explain_one([*TOLD, *lines])
    assert (found.confidence, triples(found)) == ("exact", {(64, 12_288, 1)})
    # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB.
    assert found.env == {VLLM: "2561671168"}


@pytest.mark.parametrize(
    "lines",
    [
        [failed_step(16_384), OTHER, "--- the engine restarts ---", CRASH],
        [failed_step(16_384), OTHER, CRASH],
        [failed_step(16_384), START, CRASH],
        [failed_step(16_384), "--- the engine restarts ---", CRASH],
        [OTHER, failed_step(16_384), CORE + CRASH],
        [CORE + CRASH, failed_step(16_384), CORE + CRASH[: CRASH.index("1611661312")] + "9"],
        [CORE + CRASH, failed_step(16_384), OTHER],
        [CORE + CRASH, OTHER, failed_step(16_384)],
        [CORE + CRASH, DEAD, failed_step(16_384)],
        [CORE + CRASH, START, failed_step(16_384)],
        # A worker tells of its error before the engine core puts down the step.
        [failed_step(16_384), WORKER + CRASH],
        # Two engines, and two steps of which either may be.
        [CORE + CRASH, failed_step(16_384), failed_step(12_288)],
        [failed_step(16_384), "(EngineCore pid=176) " + CRASH, failed_step(12_288)],
        ["[pod/a/x] " + CRASH, "[pod/b/x] " + failed_step(16_384)],
    ],
    ids=[
        "report", "failure between", "start between", "restart", "failure above",
        "cut of another size", "failure behind",
        "failure before", "dead before", "start before", "worker", "two engines", "two steps",
        "another pod",
    ],
)  # fmt: skip
def test_a_step_that_may_be_of_another_failure(lines: list[str], explain_one: ExplainOne) -> None:
    """48 heads x 16,384 rows ask for the same bytes as 64 x 12,288: it may be, or may not."""
    found, without = explain_one([*TOLD, *lines]), explain_one([*TOLD, CRASH])
    assert found.confidence == "consistent"
    assert triples(found) == triples(without) >= {(48, 16_384, 1), (64, 12_288, 1)}
    first = found.solutions[0]
    assert (first.num_qo_heads, first.batch_size) in {(48, 16_384), (64, 12_288)}
    assert (found.recommended_workspace_bytes, found.env, found.set) == (
        without.recommended_workspace_bytes, without.env, without.set,
    )  # fmt: skip
    (note,) = [note for note in found.notes if "failed step" in note]
    assert "16,384" in note


def test_many_steps_are_one_short_note(explain_one: ExplainOne) -> None:
    """Of 96 to 16,384 tokens those that some count of heads, in multiples of 8, makes a call of."""
    dumps = [line for tokens in range(96, 16_385, 96) for line in (failed_step(tokens), OTHER)]
    found = explain_one([*TOLD, *dumps, START, CRASH])
    assert found.confidence == "consistent"
    (note,) = [note for note in found.notes if "failed step" in note]
    assert len(note) < 200
    # No call has 16,320 rows: 786,432 heads * rows are 2 ** 18 * 3.
    assert "16,320" not in note


def test_another_fault_between(explain: Callable[..., list[Finding]]) -> None:
    """8 * 64 * 8,192 * 256 + 1 MiB is the step's; it stands between the dump and the other."""
    own = overflow(STATS, 1_074_790_400, 404_750_336)
    found = explain([*TOLD, failed_step(8_192), "(EngineCore pid=176) " + own, WORKER + CRASH])
    assert [each.confidence for each in found] == ["exact", "consistent"]
