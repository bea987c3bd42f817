"""The seven checks: what makes a board ready, and what is said when it is not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from slot_worker import CRASH_PLAN, DECODE, FIXED_PLAN

from ws_guard.board import OVERFLOW, OVERRUN, Board, Outcome
from ws_guard.exporter.checks import CHECKS, Examiner, examine
from ws_guard.exporter.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Ask, Attach

    from ws_guard.exporter.model import Health
    from ws_guard.exporter.refresh import Refresher
    from ws_guard.exporter.snapshot import BoardWatch
    from ws_guard.settings import Settings


def ready(watch: BoardWatch, chosen: Settings) -> Health:
    return examine(watch.read(), chosen)


def test_the_names_are_a_contract() -> None:
    assert list(CHECKS) == [
        "board_readable",
        "workers_reporting",
        "workers_alive",
        "planned_fits",
        "no_overflow",
        "no_overrun",
        "contract_known",
    ]


def test_a_sound_board_is_ready(
    attach: Attach, watch: BoardWatch, settings: Callable[..., Settings]
) -> None:
    attach(planned=[FIXED_PLAN]).call(3_000)
    health = ready(watch, settings())
    assert {check.state for check in health.checks} == {"ok"}
    assert health.ready


def test_a_snapshot_is_examined_once(
    attach: Attach, refresher: Refresher, settings: Callable[..., Settings]
) -> None:
    """A thousand probes between two reads of the board get the same verdict, the next its own."""
    examiner = Examiner(refresher.latest, settings())
    attach(rank="0", planned=[])
    refresher.refresh()
    first = examiner.health()
    assert first.ready
    assert examiner.health() is first
    attach(rank="1", planned=[]).overflow()
    assert examiner.health() is first
    refresher.refresh()
    assert [check.name for check in examiner.health().checks if check.state == "fail"] == [
        "no_overflow"
    ]


def test_an_absent_board_is_not_ready_and_not_unreadable(
    ask: Ask, watch: BoardWatch, settings: Callable[..., Settings]
) -> None:
    assert ask("board_readable")[0] == "unknown"
    assert ask("workers_reporting") == ("fail", "no worker reports yet")
    for name in ("workers_alive", "planned_fits", "no_overflow", "no_overrun", "contract_known"):
        assert ask(name)[0] == "unknown"
    assert not ready(watch, settings()).ready


def test_a_fault_fails(settings: Callable[..., Settings]) -> None:
    (check, *_) = examine(Snapshot(fault="Input/output error"), settings()).checks
    assert (check.state, check.detail) == (
        "fail",
        "the board cannot be read: Input/output error",
    )


@pytest.mark.parametrize(
    ("told", "environ", "state"),
    [
        ([None], {}, "ok"),
        ([2], {}, "fail"),
        ([2, 2], {}, "ok"),
        ([1, 2, None], {}, "ok"),
        ([1, 4, None], {}, "fail"),
        ([4], {"WS_GUARD_EXPECTED_WORKERS": "1"}, "ok"),
        ([1], {"WS_GUARD_EXPECTED_WORKERS": "2"}, "fail"),
    ],
)
def test_workers_reporting(
    attach: Attach, ask: Ask, told: list[int | None], environ: dict[str, str], state: str
) -> None:
    for rank, expected in enumerate(told):
        attach(rank=str(rank), expected_workers=expected)
    assert ask("workers_reporting", **environ)[0] == state


def test_neither_the_dead_nor_a_double_reports(attach: Attach, ask: Ask) -> None:
    attach(rank="0", expected_workers=2)
    attach(rank="0", expected_workers=2)
    assert ask("workers_reporting") == ("fail", "1 of 2 expected workers report")
    second = attach(rank="1")
    assert ask("workers_reporting")[0] == "ok"
    second.die()
    assert ask("workers_reporting")[0] == "fail"


def test_workers_alive(attach: Attach, ask: Ask) -> None:
    attach(rank="0")
    dead = attach(rank="1")
    assert ask("workers_alive") == ("ok", "2 alive")
    dead.die()
    assert ask("workers_alive") == ("fail", "engine 0 rank 1: the worker died")
    attach(rank="1")
    assert ask("workers_alive")[0] == "ok"


def test_a_clean_end_is_no_death(attach: Attach, ask: Ask) -> None:
    attach(rank="0")
    attach(rank="1").close()
    assert ask("workers_alive") == ("ok", "1 alive")


def test_a_dead_newer_double_is_a_death(attach: Attach, ask: Ask) -> None:
    attach()
    attach().die()
    assert ask("workers_alive")[0] == "fail"


@pytest.mark.parametrize(
    ("kind", "action", "overflow", "overrun"),
    [
        (OVERFLOW, "observed", "fail", "ok"),
        (OVERFLOW, "raised", "warn", "ok"),
        (OVERFLOW, "split", "warn", "ok"),
        (OVERRUN, "observed", "ok", "fail"),
        (OVERRUN, "raised", "ok", "fail"),
    ],
)
def test_overflow_and_overrun_latch(
    attach: Attach, ask: Ask, kind: int, action: str, overflow: str, overrun: str
) -> None:
    worker = attach()
    worker.call(5)
    assert (ask("no_overflow")[0], ask("no_overrun")[0]) == ("ok", "ok")
    worker.event(kind, action)
    for _ in range(2):
        assert (ask("no_overflow")[0], ask("no_overrun")[0]) == (overflow, overrun)
        worker.call(5)


def test_a_new_worker_starts_without_the_faults_of_the_old(attach: Attach, ask: Ask) -> None:
    old = attach()
    old.overflow()
    old.die()
    assert ask("no_overflow") == (
        "fail",
        f"engine 0 rank 0: {DECODE}: overflow observed, 1 call",
    )
    attach()
    assert ask("no_overflow")[0] == "ok"


def test_the_overflow_of_a_hidden_double_is_not_hidden(attach: Attach, ask: Ask) -> None:
    attach().overflow()
    attach()
    assert ask("no_overflow")[0] == "fail"


def test_scratch_that_may_not_fit_is_a_warning(attach: Attach, ask: Ask) -> None:
    # 10,747,904 bytes of stats in as many bytes of workspace: nothing is left for scratch.
    attach(layout="C").call(74, workspace_bytes=10_747_904)
    state, detail = ask("no_overrun")
    assert (state, "scratch may not fit" in detail) == ("warn", True)


def test_refused_calls_of_tuning_are_no_overflow(attach: Attach, ask: Ask) -> None:
    attach().call(8_192, mode="tuning", outcome=Outcome.TUNING)
    assert ask("no_overflow")[0] == "ok"


@pytest.mark.parametrize(
    ("contract", "strict", "state"),
    [
        ("verified", "0", "ok"),
        ("unverified", "0", "warn"),
        ("mismatch", "0", "warn"),
        ("unverified", "1", "fail"),
        ("mismatch", "1", "fail"),
        ("verified", "1", "ok"),
        ("not_installed", "1", "unknown"),
        ("gibberish", "1", "unknown"),
    ],
)
def test_contract_known(attach: Attach, ask: Ask, contract: str, strict: str, state: str) -> None:
    attach(contract=contract, contract_reason="a new slab")
    found, detail = ask("contract_known", WS_GUARD_STRICT=strict)
    assert found == state
    assert ("a new slab" in detail) == (contract in ("unverified", "mismatch"))


def test_only_fail_makes_not_ready(
    attach: Attach, watch: BoardWatch, settings: Callable[..., Settings]
) -> None:
    worker = attach(contract="unverified")
    worker.event(OVERFLOW, "split")
    health = ready(watch, settings())
    assert {check.state for check in health.checks} == {"ok", "warn", "unknown"}
    assert health.ready


def test_many_ranks_with_one_fault_are_one_line(attach: Attach, ask: Ask) -> None:
    for rank in ("0", "1", "2", "3", "7", "x"):
        attach(rank=rank, planned=[CRASH_PLAN])
    attach(engine="1", rank="5", planned=[CRASH_PLAN])
    _, detail = ask("planned_fits")
    assert detail.startswith("engine 0 rank 0-3, 7, x: ws0: a step")
    assert "; engine 1 rank 5: ws0: a step" in detail


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_slot_that_the_system_refuses_hides_a_worker(
    attach: Attach, ask: Ask, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    attach(rank="0")
    attach(rank="1")
    refuse(monkeypatch, code)
    state, detail = ask("board_readable")
    reason = os.strerror(code)
    assert state == "fail"
    told = f"2 slots cannot be read, of the workers nothing is known: {reason}"
    assert detail.startswith(told)
    assert ("WS_GUARD_BOARD_GROUP" in detail) == (code == errno.EACCES)


def test_a_refused_slot_of_a_stranger_hides_nobody(
    attach: Attach, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach()
    refuse(monkeypatch, errno.EACCES)
    monkeypatch.setattr(Board, "trusts", lambda *_: False)
    state, detail = ask("board_readable")
    assert (state, detail) == ("ok", "1 file on the board passed over: Permission denied")


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let no slot be opened, as an unfit mode or a broken disk does; root opens every file."""

    def read(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("ws_guard.exporter.snapshot.SlotReader.read", read)


def test_files_that_are_passed_over_are_told_without_their_names(
    attach: Attach, ask: Ask, board: Board
) -> None:
    attach()
    Path(board.path, "secret.slot").write_bytes(b"")
    state, detail = ask("board_readable")
    assert state == "ok"
    assert detail.startswith("1 file on the board passed over: it has 0 bytes")
    assert "secret" not in detail
