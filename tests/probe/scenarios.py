"""The scenarios of captured graphs, by name; each is played on a stage of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from graph_stage import Stage, stage

if TYPE_CHECKING:
    from collections.abc import Callable

    Play = Callable[[Stage], None]

MIB = 1 << 20
MODES = ("eager", "captured", "replayed")


class Scenario(NamedTuple):
    """What is played, and what is done about calls that do not fit."""

    play: Play
    action: str


#: Every scenario; a module of scenarios adds its own when it is imported.
SCENARIOS: dict[str, Scenario] = {}


def scenario(action: str = "observe") -> Callable[[Play], Play]:
    """Marks a function as a scenario."""

    def add(play: Play) -> Play:
        SCENARIOS[play.__name__] = Scenario(play, action)
        return play

    return add


def run(name: str) -> None:
    """Play one scenario."""
    play, action = SCENARIOS[name]
    with stage(action) as set_up:
        play(set_up)
        assert set_up.problems == []


def error_of(action: Callable[[], object]) -> RuntimeError:
    try:
        action()
    except RuntimeError as error:
        return error
    raise AssertionError("it went well")


def in_thread(target: Callable[[], object]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
