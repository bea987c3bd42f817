"""Dead workers' slots: the same verdict as from the log of the same crash."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from messages import STATS, overflow
from slot_worker import CONTEXT, CRASH_PLAN, WORKSPACE_BYTES, SlotWorker, attaching

from ws_guard.board import OVERRUN, Board, Outcome
from ws_guard.explain.board import explain_board
from ws_guard.settings import read_settings
from ws_guard.sizing import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ws_guard.explain.board import Explained
    from ws_guard.explain.finding import Finding

    Attach = Callable[..., SlotWorker]

LOG = [
    "vLLM API server version 0.26.0",
    (
        "non-default args: {'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, "
        "'max_num_batched_tokens': 16384}"
    ),
    '"num_attention_heads": 64',
    overflow(STATS, 1_611_661_312, 404_750_336),
]
#: What must not depend on where the crash was read.
VERDICT = (
    "kind",
    "slab",
    "size",
    "available",
    "layouts",
    "workspace_bytes",
    "overflow_threshold_batch",
    "need_bytes",
    "recommended_workspace_bytes",
    "env",
    "set",
    "confidence",
)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(str(tmp_path / "board"))


@pytest.fixture
def attach(board: Board) -> Iterator[Attach]:
    with attaching(board) as attach:
        yield attach


def explained(board: Board) -> Explained:
    return explain_board(read_settings({"WS_GUARD_BOARD": board.path})[0])


def verdict(found: Finding) -> dict[str, object]:
    return {key: getattr(found, key) for key in VERDICT}


def triples(found: Finding) -> list[tuple[int, int | None, int | None]]:
    return [(each.num_qo_heads, each.batch_size, each.max_q_len) for each in found.solutions]


def test_same_verdict_as_from_the_log(
    board: Board, attach: Attach, explain_one: Callable[..., Finding]
) -> None:
    for rank in range(3):
        worker = attach(rank=str(rank), planned=[CRASH_PLAN])
        worker.call(3_080)
        worker.overflow(12_288)
        worker.die()
    told = explained(board)
    (found,) = told.findings
    from_log = explain_one(LOG)
    assert verdict(found) == verdict(from_log)
    assert triples(found) == triples(from_log) == [(64, 12_288, 1)]
    assert found.confidence == "exact"
    assert found.ranks == ("0/0", "0/1", "0/2")
    assert told.dead == ["0/0", "0/1", "0/2"]
    newest, before = told.last_calls["0/1"]
    assert (newest["batch"], newest["outcome"]) == (12_288, "overflow")
    assert (before["batch"], before["outcome"]) == (3_080, "eager")


def test_without_a_plan_the_call_itself_is_what_must_fit(
    board: Board, attach: Attach, explain_one: Callable[..., Finding]
) -> None:
    worker = attach()
    worker.overflow(12_288)
    worker.die()
    (found,) = explained(board).findings
    (alone,) = [explain_one(LOG[-1:])]
    # 394 MiB and the slab, as from the message alone.
    assert found.recommended_workspace_bytes == alone.recommended_workspace_bytes
    assert found.recommended_workspace_bytes == 413_138_944 + 1_611_661_312
    assert (found.confidence, found.env) == ("exact", {})


def test_layout_c_of_a_slot(board: Board, attach: Attach) -> None:
    worker = attach(layout="C")
    worker.overflow(3_145)
    worker.die()
    (found,) = explained(board).findings
    # 8 * 64 * 3,145 * 256 + 1 MiB; nothing stands before it.
    assert (found.size, found.available) == (413_270_016, WORKSPACE_BYTES)
    assert (found.layouts, found.overflow_threshold_batch) == (("C",), 3_144)


def test_overrun_is_exact_and_suspect(board: Board, attach: Attach) -> None:
    worker = attach()
    worker.event(OVERRUN)
    worker.call(74, workspace_bytes=12 << 20, lse=False, outcome=Outcome.OVERRUN)
    worker.die()
    (found,) = explained(board).findings
    assert (found.kind, found.confidence) == ("overrun", "exact")
    assert triples(found) == [(64, 74, 1)]
    assert any("suspect" in note for note in found.notes)


def test_call_that_left_the_ring_is_unsolved(board: Board, attach: Attach) -> None:
    worker = attach(rank="3")
    worker.event(0, op=1, count=7)
    worker.die()
    (found,) = explained(board).findings
    assert (found.confidence, found.ranks) == ("unsolved", ("0/3",))
    assert any(f"7 calls of {CONTEXT}" in note for note in found.notes)


def test_short_counter_of_a_slot(board: Board, attach: Attach) -> None:
    worker = attach(layout="C")
    worker.event(0)
    worker.call(64, counter_buffer_bytes=64, outcome=Outcome.OVERFLOW)
    worker.die()
    (found,) = explained(board).findings
    assert (found.kind, found.slab) == ("counter", "multi_ctas_kv_counter_buffer")
    assert (triples(found), found.confidence) == ([(64, 64, 1)], "exact")


def test_board_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such directory; pass --board"):
        explained(Board(str(tmp_path / "none")))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a directory"):
        explained(Board(str(tmp_path / "file")))


def test_command(board: Board, attach: Attach) -> None:
    worker = attach(planned=[CRASH_PLAN])
    command = [sys.executable, "-m", "ws_guard", "explain", "--board", board.path]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *options], capture_output=True, text=True, check=False)

    worker.call(3_080)
    quiet = run("--json")
    assert (quiet.returncode, json.loads(quiet.stdout)["findings"]) == (1, [])
    assert "that did not fit; no worker died" in quiet.stderr
    worker.overflow(12_288)
    worker.die()
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert "64 heads x 12,288 rows x 1 query token\n" in done.stdout
    assert "set: VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=2561671168" in done.stdout
    assert "last calls of 0/0, which died:" in done.stdout
    told = json.loads(run("--json").stdout)
    assert told["findings"][0]["recommended_workspace_bytes"] == 2_561_671_168
    assert told["last_calls"]["0/0"][0]["batch"] == 12_288
