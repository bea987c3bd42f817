"""A log in parts: what lies on a seam, far from its hints, or behind much of the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from messages import CRASH

from ws_guard.explain import reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.explain.finding import Finding

    ExplainOne = Callable[..., Finding]

TOLD = (
    "non-default args: {'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, "
    "'max_num_batched_tokens': 16384}\n\"num_attention_heads\": 64\n"
)
START = f"{TOLD}Initializing a V1 LLM engine (v0.26.0) with config: model='m'\n"
FILLER = "INFO 07-05 12:00:01 [loggers.py:1] Engine 000: Running: 3 reqs, Waiting: 0 reqs\n"


def filler(size: int) -> str:
    """Lines of exactly so many bytes."""
    whole, rest = divmod(size, len(FILLER))
    return FILLER * whole + (f"{'x' * (rest - 1)}\n" if rest else "")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Parts of a few KiB: seams everywhere."""
    monkeypatch.setattr(reader, "CHUNK", 8 << 10)
    monkeypatch.setattr(reader, "_MARGIN", 4 << 10)
    return 16 << 10


@pytest.mark.parametrize("back", range(0, 700, 23))
def test_message_on_a_seam(back: int, small_parts: int, explain_one: ExplainOne) -> None:
    for part in (small_parts - 4_096, small_parts, 3 * small_parts):
        log = f"{filler(part - back)}{CRASH}\n{filler(20_000)}"
        found = explain_one(log.encode())
        assert (found.size, found.available) == (1_611_661_312, 404_750_336)


def test_wrapped_message_on_a_seam(small_parts: int, explain_one: ExplainOne) -> None:
    wrapped = CRASH.replace(" with size", "\n with size").replace(", but", ",\n but")
    for back in range(0, 700, 23):
        log = f"{filler(small_parts - 4_096 - back)}{wrapped}\n{filler(20_000)}"
        assert explain_one(log.encode()).available == 404_750_336


def test_start_far_from_beginning_and_crash(explain_one: ExplainOne) -> None:
    log = filler(9 << 20) + START + filler(3 << 20) + CRASH
    found = explain_one(log.encode())
    assert (found.confidence, found.recommended_workspace_bytes) == ("exact", 2_561_671_168)


@pytest.mark.parametrize("colon", [":", ": ", " : "])
def test_the_first_journal_message_with_colours_is_far_in(
    colon: str, explain_one: ExplainOne
) -> None:
    """journald lists the bytes of such a message: here of none but the crash."""
    spelled = list(f"\x1b[0;36m(Worker_TP3 pid=9)\x1b[0;0m ERROR {CRASH}".encode())
    plain = f'{{"_HOSTNAME":"n","MESSAGE"{colon}"{FILLER.strip()}"}}\n'
    log = plain * ((5 << 20) // len(plain)) + f'{{"_HOSTNAME":"n","MESSAGE"{colon}{spelled}}}\n'
    found = explain_one(log.encode())
    assert (found.size, found.ranks) == (1_611_661_312, ("Worker_TP3",))


def test_hints_near_the_crash(explain_one: ExplainOne) -> None:
    log = filler(9 << 20) + TOLD + filler(100_000) + CRASH
    assert explain_one(log.encode()).confidence == "exact"


def test_zero_bytes_in_a_log(explain_one: ExplainOne) -> None:
    log = f"{TOLD}{filler(1 << 20)}\0\0\0{CRASH}\n{filler(1 << 20)}\0"
    assert explain_one(log.encode()).confidence == "exact"


def test_without_the_c_library(monkeypatch: pytest.MonkeyPatch, explain_one: ExplainOne) -> None:
    monkeypatch.setattr("ws_guard.explain.search._function", lambda *_: None)
    assert explain_one(f"{TOLD}{filler(1 << 20)}{CRASH}".encode()).confidence == "exact"
