"""The board in a terminal."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from slot_worker import CRASH_PLAN, FIXED_PLAN

from ws_guard.exporter import status
from ws_guard.settings import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Attach

    from ws_guard.exporter.snapshot import BoardWatch
    from ws_guard.settings import Settings


@pytest.fixture
def shown(watch: BoardWatch, settings: Callable[..., Settings]) -> Callable[..., str]:
    def read(width: int = 160) -> str:
        console = Console(file=io.StringIO(), width=width)
        console.print(status.render(watch.read(), settings()))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    return read


def test_a_board_that_is_ready(attach: Attach, shown: Callable[..., str]) -> None:
    attach(planned=[FIXED_PLAN]).call(3_000, workspace_bytes=2_561_671_168)
    text = shown()
    assert text.startswith("READY")
    assert "19,472" in text
    assert "386.0 MiB" in text  # 404,750,336 bytes


def test_a_board_that_is_not(attach: Attach, shown: Callable[..., str]) -> None:
    attach(planned=[CRASH_PLAN])
    text = shown()
    assert text.startswith("NOT READY")
    assert "planned_fits: engine 0 rank 0" in text
    assert "-1.6 GiB" in text


def test_the_bar(attach: Attach, watch: BoardWatch) -> None:
    attach(planned=[CRASH_PLAN]).call(3_081)
    ((site,),) = [one.worker.workspaces for one in watch.read().slots]
    # 24 cells are 2,156,920,832 bytes: the workspace ends in the fifth, the plan in the last.
    assert status.bar(site).plain == "█████" + " " * 18 + "┃"
    attach(rank="1").call(1_540)
    _, second = watch.read().slots
    # 51.1 % of 24 cells are 12.3.
    assert status.bar(second.worker.workspaces[0]).plain == "█" * 13 + "·" * 10 + "│"


def test_an_empty_board(shown: Callable[..., str]) -> None:
    assert "no worker has attached yet" in shown()


def test_a_worker_without_a_call(attach: Attach, shown: Callable[..., str]) -> None:
    attach()
    assert "no native call yet" in shown()


def test_a_narrow_terminal_keeps_the_numbers(attach: Attach, shown: Callable[..., str]) -> None:
    attach(planned=[CRASH_PLAN]).call(3_080)
    text = shown(width=80)
    assert max(map(len, text.splitlines())) <= 80
    for number in ("394.0 MiB", "2.0 GiB", "3,080", "-1.6 GiB", "16,384 rows"):
        assert number in text


def test_a_terminal_that_is_too_narrow_for_a_table(
    attach: Attach, shown: Callable[..., str]
) -> None:
    attach(planned=[CRASH_PLAN]).call(3_080)
    attach(rank="1")
    lines = [line.rstrip() for line in shown(width=40).splitlines()]
    assert max(map(len, lines)) <= 40
    # Nothing but what a check says is broken into two lines.
    assert lines[lines.index("0/0  alive  ws0, 394.0 MiB") :] == [
        "0/0  alive  ws0, 394.0 MiB",
        "  █████                  ┃",  # of 24 cells 394 MiB / 2,156,920,832 B: 4.6
        "  peak      394.0 MiB, 3,080 rows",
        "  planned   2.0 GiB, 16,384 rows",
        "  threshold 3,080",
        "  margin    -1.6 GiB",
        "0/1  alive  no native call yet",
        "█ peak  ┃ planned  │ end of the",
        "workspace",
    ]


@pytest.fixture
def _overflow_then_interrupt(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    """While `status` sleeps its worker overflows; in its second sleep somebody presses Ctrl-C."""
    worker = attach()
    naps = iter(["first", "second"])

    def nap(_: float) -> None:
        if next(naps) == "second":
            raise KeyboardInterrupt
        worker.overflow()

    monkeypatch.setattr("ws_guard.exporter.status.time.sleep", nap)


@pytest.mark.usefixtures("_overflow_then_interrupt")
def test_watching_shows_news_until_interrupted(
    settings: Callable[..., Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.show(settings(), watch=True) == 1
    assert "no_overflow" in capsys.readouterr().out


def test_a_group_that_does_not_exist(settings: Callable[..., Settings]) -> None:
    with pytest.raises(SettingError, match="no such group"):
        status.show(settings(WS_GUARD_BOARD_GROUP="no-such-group"))


def test_markup_in_names_is_no_markup(attach: Attach, shown: Callable[..., str]) -> None:
    attach(rank="[red]x[/]", workspaces=["[bold]w"]).call(5)
    text = shown()
    assert "[red]x[/]" in text
    assert "[bold]w" in text


def test_exit_codes(
    attach: Attach, settings: Callable[..., Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.show(settings()) == 1
    worker = attach()
    worker.call(5)
    assert status.show(settings()) == 0
    worker.overflow()
    assert status.show(settings()) == 1
    assert "no_overflow" in capsys.readouterr().out


def test_json(
    attach: Attach, settings: Callable[..., Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    attach().call(3_080)
    assert status.show(settings(), as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ready"]
    assert told["workers"][0]["workspaces"][0]["peak"]["margin_bytes"] == 0


@pytest.mark.usefixtures("_overflow_then_interrupt")
def test_watching_json_is_a_document_on_each_line(
    settings: Callable[..., Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.show(settings(), watch=True, as_json=True) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["ready"] for one in told] == [True, False]


def test_an_unreadable_board(
    attach: Attach,
    settings: Callable[..., Settings],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attach()
    monkeypatch.setattr("os.geteuid", lambda: 4_242)
    assert status.show(settings()) == 2
    assert "the board belongs to uid" in capsys.readouterr().err
