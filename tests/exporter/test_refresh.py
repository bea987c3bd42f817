"""The thread that keeps the snapshot fresh, and what happens when it cannot."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

import pytest
from doors import PATIENCE, wait_until

from ws_guard.board import Board, BoardError
from ws_guard.exporter.events import EventLog
from ws_guard.exporter.refresh import Refresher, board_refresher
from ws_guard.exporter.snapshot import BoardWatch, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Attach, Clock, HangingWatch

    from ws_guard.settings import Settings


def test_the_first_read_is_there_when_start_returns(attach: Attach, board: Board) -> None:
    worker = attach()
    refresher = Refresher(BoardWatch(board), EventLog())
    assert refresher.latest().state == "unread"
    refresher.start(first_read_seconds=PATIENCE)
    assert [one.slot for one in refresher.latest().slots] == [worker.name]
    refresher.stop()


def test_news_arrive_by_themselves(attach: Attach, board: Board) -> None:
    refresher = Refresher(BoardWatch(board), EventLog(io.StringIO()), interval=0.01)
    refresher.start()
    worker = attach()
    wait_until(lambda: len(refresher.latest().slots) == 1)
    worker.die()
    wait_until(lambda: not refresher.latest().slots[0].worker.alive)
    refresher.stop()


def test_start_and_stop_as_often_as_one_likes(board: Board) -> None:
    refresher = Refresher(BoardWatch(board), EventLog(), interval=0.01)
    before = threading.active_count()
    for _ in range(3):
        refresher.start()
        refresher.start()
        # One reads the board, the other writes the log.
        assert threading.active_count() == before + 2
        refresher.stop()
        refresher.stop()
        assert threading.active_count() == before


def test_a_read_that_is_too_old_is_a_fault(refresher: Refresher, clock: Clock) -> None:
    refresher.refresh()
    clock.now += 5
    assert refresher.latest().fault == ""
    clock.now += 0.6
    assert refresher.latest().fault == "the last good read is 6 s old"
    refresher.refresh()
    assert refresher.latest().fault == ""


def test_a_first_read_that_never_ends_is_a_fault_too(refresher: Refresher, clock: Clock) -> None:
    clock.now += 7
    assert refresher.latest().fault == "the last good read is 7 s old"


def test_a_hung_read_holds_up_nobody(hanging_watch: HangingWatch, clock: Clock) -> None:
    refresher = Refresher(hanging_watch, EventLog(), clock=clock)
    refresher.start(first_read_seconds=0.01)
    assert refresher.latest().state == "unread"
    assert refresher.working
    clock.now += 6
    assert refresher.latest().fault
    hanging_watch.answering.set()
    wait_until(lambda: refresher.latest().state == "absent")
    refresher.stop()


class BrokenWatch(BoardWatch):
    """A board whose reading has a bug."""

    def read(self) -> Snapshot:
        raise ZeroDivisionError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ended_is_known(board: Board) -> None:
    refresher = Refresher(BrokenWatch(board), EventLog())
    assert refresher.working
    refresher.start(first_read_seconds=0.01)
    wait_until(lambda: not refresher.working)
    refresher.stop()


def test_a_group_that_does_not_exist(settings: Callable[..., Settings]) -> None:
    with pytest.raises(BoardError, match="no such group"):
        board_refresher(settings(WS_GUARD_BOARD_GROUP="no-such-group"))
