"""A recorder's slot comes and goes: closed, on a board that cannot be used, in forked children."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import multiprocessing.util  # once loaded, it holds the recorder as well
import os
import resource
import weakref
from typing import TYPE_CHECKING

import pytest
from slot_views import ReadSlot, ReadSlots

from ws_guard.board import OVERFLOW, Board, SlotView
from ws_guard.board.format import SLOT_BYTES, Header
from ws_guard.probe.recorder import Recorder
from ws_guard.sizing import LAYOUTS, OPS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

FORK = multiprocessing.get_context("fork")
DECODE = OPS["decode"]
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def recorder_on(path: str) -> Recorder:
    return Recorder(Board(path), LAYOUTS["B"], list(OPS.values()), {"engine": "0"})


def test_close_takes_the_slot_away(recorder: Recorder, board: str) -> None:
    recorder.close()
    recorder.close()
    assert os.listdir(board) == []


def test_close_leaves_the_evidence_of_an_overflow(recorder: Recorder, slot: ReadSlot) -> None:
    recorder.add_event(DECODE, OVERFLOW, "observed")
    recorder.close()
    assert (slot().alive, slot().closed) == (False, False)
    assert list(slot().events.values()) == [1]


def test_close_without_evidence_takes_the_slot_away_all_the_same(
    recorder: Recorder, board: str
) -> None:
    recorder.add_event(DECODE, OVERFLOW, "observed")
    recorder.close(keep_evidence=False)
    assert os.listdir(board) == []


def test_nothing_reaches_the_board_after_close(
    recorder: Recorder, board: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder.close()
    recorder.add_event(DECODE, OVERFLOW, "observed")
    recorder.stumbled("late")
    recorder.describe(engine="1")
    recorder.forget_slot()
    recorder.attach_if_pending()
    assert os.listdir(board) == []
    # A call that was under way meanwhile is no error, and nothing to log.
    assert recorder.slot.words[Header.PROBE_ERRORS] == 0
    assert caplog.messages == []


@pytest.mark.parametrize("later", [False, True])
def test_closed_recorder_is_let_go_of(board: str, later: bool) -> None:
    recorder = Recorder(Board(board), LAYOUTS["B"], list(OPS.values()), {}, later=later)
    recorder.attach_if_pending()
    gone = weakref.ref(recorder)
    recorder.close()
    del recorder
    gc.collect()
    assert gone() is None


def test_a_starting_worker_removes_the_dead_slot_of_its_identity(
    recorder: Recorder, board: str, slots: ReadSlots
) -> None:
    recorder.describe(rank="3")
    recorder.add_event(DECODE, OVERFLOW, "observed")
    recorder.close()
    (dead,) = slots()
    assert not dead.alive
    document = {"engine": "0", "rank": "4"}
    other = Recorder(Board(board), LAYOUTS["B"], list(OPS.values()), document)
    assert len(slots()) == 2
    successor = Recorder(Board(board), LAYOUTS["B"], list(OPS.values()), {**document, "rank": "3"})
    assert sorted(view.document["rank"] for view in slots()) == ["3", "4"]
    assert all(view.alive for view in slots())
    other.close()
    successor.close()


def test_a_part_that_cannot_follow_to_a_new_slot_keeps_no_other_from_it(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("on purpose")

    followed: list[str] = []
    recorder.on_new_slot += [fail, lambda: followed.append("the next one")]
    recorder.forget_slot()
    recorder.on_new_slot.remove(fail)
    assert followed == ["the next one"]
    (line,) = caplog.messages
    assert line.endswith("OSError: on purpose")


# -- boards that cannot be used --------------------------------------------------------------------


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow to the size of a slot: `posix_fallocate` fails as on a full board."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SLOT_BYTES - 1, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_full_board_is_warned_of_once(board: str, caplog: pytest.LogCaptureFixture) -> None:
    recorder = recorder_on(board)
    recorder.add_event(DECODE, OVERFLOW, "observed")
    recorder.close()
    assert os.listdir(board) == []
    (line,) = caplog.messages
    assert "not observed: board" in line
    assert "File too large" in line


@pytest.mark.parametrize(
    "path",
    ["{tmp}/file", "{tmp}/file/board", "/proc/board", "{tmp}/null\0byte", "{tmp}/" + "x" * 300],
    ids=["a file", "below a file", "in /proc", "null byte", "too long"],
)
def test_unusable_board_is_warned_of_once(
    path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "ws_guard"):
        recorder = recorder_on(path.format(tmp=tmp_path))
        recorder.add_event(DECODE, OVERFLOW, "observed")
        recorder.describe(engine="1")
        recorder.close()
    assert len(caplog.messages) == 1
    assert recorder.slot.path is None


# -- forked children -------------------------------------------------------------------------------


def forked(recorder: Recorder, pipe: Connection, attach: bool) -> None:
    """What `install`'s hook and a first native call do in a forked child."""
    recorder.forget_slot()
    if attach:
        recorder.attach_if_pending()
        recorder.workspace_number(4096)
    recorder.stumbled("the child's")
    pipe.send(None)
    pipe.recv()


def run_child(recorder: Recorder, slots: ReadSlots, *, attach: bool) -> list[list[SlotView]]:
    """The board while a forked child lives, and after its clean end."""
    ours, theirs = multiprocessing.Pipe()
    child = FORK.Process(
        target=forked, args=(recorder, theirs), kwargs={"attach": attach}, daemon=True
    )
    child.start()
    ours.recv()
    during = slots()
    ours.send(None)
    child.join(timeout=60)
    assert child.exitcode == 0
    return [during, slots()]


@forks
def test_forked_child_leaves_the_parents_slot_alone(recorder: Recorder, slots: ReadSlots) -> None:
    recorder.workspace_number(64)
    for view in run_child(recorder, slots, attach=False):
        (only,) = view
        assert (only.pid, only.alive, only.probe_errors) == (os.getpid(), True, 0)
    recorder.close(keep_evidence=False)
    assert slots() == []


@forks
def test_forked_child_has_a_slot_of_its_own_until_its_end(
    recorder: Recorder, slots: ReadSlots
) -> None:
    recorder.workspace_number(64)
    recorder.workspace_number(128)
    during, after = run_child(recorder, slots, attach=True)
    (child,) = (view for view in during if view.pid != os.getpid())
    assert (child.alive, child.probe_errors) == (True, 1)
    # Its workspaces are counted from the first again.
    assert child.document["workspaces"] == ["ws0"]
    (parent,) = (view for view in during if view.pid == os.getpid())
    assert (parent.alive, parent.probe_errors) == (True, 0)
    assert [view.pid for view in after] == [os.getpid()]


@forks
def test_parents_lock_is_not_kept_by_its_child(recorder: Recorder, slots: ReadSlots) -> None:
    """A slot whose parent dies before its forked child must read as dead."""
    ours, theirs = multiprocessing.Pipe()
    child = FORK.Process(
        target=forked, args=(recorder, theirs), kwargs={"attach": False}, daemon=True
    )
    child.start()
    ours.recv()
    recorder.add_event(DECODE, OVERFLOW, "observed")
    recorder.close()
    (left,) = slots()
    assert not left.alive
    ours.send(None)
    child.join(timeout=60)
    assert child.exitcode == 0
