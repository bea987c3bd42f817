"""What `install()` is told, by argument or by setting, and what the board and the log say of it."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from slot_views import ReadSlot

import ws_guard
from ws_guard import InputError, Probe, install

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard import Plan

    Install = Callable[..., Probe]


def test_rank_comes_from_local_rank(
    installed: Install, slot: ReadSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "6")
    installed()
    assert (slot().document["engine"], slot().document["rank"]) == ("0", "6")


def test_plan_is_published(installed: Install, slot: ReadSlot, plan: Plan) -> None:
    installed(plan=plan)
    (planned,) = slot().document["planned"]
    assert planned["workspace"] == "ws0"
    # 394 MiB + 8 * 64 * 16,384 * 256 + 1 MiB, as reported.
    assert planned["recommended_workspace_bytes"] == 413_138_944 + 2_148_532_224


@pytest.mark.parametrize("value", ["0", "false", "OFF"])
def test_disabled_by_setting(
    value: str, installed: Install, board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WS_GUARD_ENABLED", value)
    finders = list(sys.meta_path)
    installed()
    assert not os.path.exists(board)
    assert sys.meta_path == finders


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("WS_GUARD_SIZING", "maybe", "use auto or off"),
        ("WS_GUARD_EXPECTED_WORKERS", "many", "use a whole number from 1 up"),
        ("WS_GUARD_ON_OVERFLOW", "explode", "use observe or raise or split"),
    ],
)
def test_bad_setting_is_a_problem_and_the_default_is_used(
    name: str,
    value: str,
    words: str,
    installed: Install,
    slot: ReadSlot,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(name, value)
    installed()
    (problem,) = slot().document["problems"]
    assert words in problem
    assert [problem in line for line in caplog.messages] == [True]
    assert slot().document["info"].items() >= {"sizing": "auto", "on_overflow": "observe"}.items()


def test_log_handler_that_raises_does_not_stop_the_worker(
    installed: Install, slot: ReadSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(record.getMessage())

    monkeypatch.setattr(logging.getLogger("ws_guard"), "handlers", [Handler()])
    monkeypatch.setenv("WS_GUARD_SIZING", "maybe")
    installed()
    assert len(slot().document["problems"]) == 1


def test_action_that_cannot_be_done_is_refused(board: str) -> None:
    allowed = "on_overflow is one of observe, raise, split, got 'explode'"
    with pytest.raises(InputError, match=allowed):
        install(on_overflow="explode", board=board)
    assert not os.path.exists(board)


@pytest.mark.parametrize("action", ["observe", "raise", "split"])
@pytest.mark.parametrize("by_setting", [True, False])
def test_action_is_told(
    by_setting: bool,
    action: str,
    installed: Install,
    slot: ReadSlot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if by_setting:
        monkeypatch.setenv("WS_GUARD_ON_OVERFLOW", action)
        installed()
    else:
        monkeypatch.setenv("WS_GUARD_ON_OVERFLOW", "observe")
        installed(on_overflow=action)
    assert slot().document["info"]["on_overflow"] == action
    assert slot().document["problems"] == []


def test_unknown_group_leaves_the_worker_unobserved(
    installed: Install,
    board: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("WS_GUARD_BOARD_GROUP", "no-such-group")
    installed()
    (line,) = caplog.messages
    assert "there is no such group" in line
    assert not os.path.exists(board)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"plan": {"fits": True}}, "plan is what ws_guard.plan"),
        ({"board": b"/tmp/x"}, "board is the path of a directory, got bytes"),
    ],
)
def test_arguments_that_cannot_be_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ws_guard.InputError, match=words):
        ws_guard.install(**arguments)
