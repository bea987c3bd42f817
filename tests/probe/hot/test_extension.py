"""The extension by itself: that it is there, what its objects take, and what they refuse."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from hot_paths import NOT_BUILT, in_c_alone

from ws_guard.probe import hot


def test_the_extension_is_built_where_it_can_be() -> None:
    if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
        assert hot.is_built(), "run `python hatch_build.py` to see why"
    elif not hot.is_built():
        pytest.skip(NOT_BUILT)


@in_c_alone
def test_a_lane_follows_nothing_told_before_it_forgot() -> None:
    lane, owner = hot.Lane(), object()
    lane.forget()
    before = sys.getrefcount(owner)
    blocks = sys.getallocatedblocks()
    place = iter(()).__next__
    held = sys.getrefcount(place)
    for batch in range(100):
        lane.follow(0, owner, (batch,), True, (), 1, 1, (0, 0, 0, 0, 0, place))
    assert sys.getallocatedblocks() - blocks < 50
    assert (sys.getrefcount(owner), sys.getrefcount(place)) == (before, held)
    lane.follow(lane.times_forgotten, owner, (1,), True, (), 1, 1, (0, 0, 0, 0, 0, place))
    assert sys.getrefcount(place) == held + 1


@in_c_alone
def test_a_lane_says_what_it_cannot_take() -> None:
    lane, rest = hot.Lane(), (0, 0, (0, 0, 0, 0, 0, iter(()).__next__))
    with pytest.raises(ValueError, match="more to compare"):
        lane.follow(0, object(), (1,) * 99, True, (), *rest)
    with pytest.raises(TypeError):
        lane.follow(0, object(), ("text",), True, (), *rest)
    with pytest.raises(OverflowError):
        lane.follow(0, object(), (1 << 200,), True, (), *rest)
    with pytest.raises(TypeError):
        lane.follow(0, object(), (1,), True, (), *rest[:-1])


@in_c_alone
@pytest.mark.parametrize("held", [(), ((((0, 1),), 0),)])
def test_an_account_that_holds_nothing_is_left_to_python(held: tuple[Any, ...]) -> None:
    """Where a slot came anew, and what a replay adds to it could not be worked out."""
    graph, account = type("Graph", (), {})(), hot.Account()
    for arguments in held:
        account.hold(*arguments)
        account.forget()
    graph._ws_guard_account = account
    account.is_current = 1
    assert not hot._hot.count_replay(graph)


def test_positions_beyond_the_arguments_are_refused(built: bool) -> None:
    places = hot.FrontPositions(2, (0, 7), 0, ((1, "shape"),))
    if not built:
        assert hot.in_front_of(len, len, len, hot.Lane(), places) is len
        return
    with pytest.raises(ValueError, match="position"):
        hot.in_front_of(len, len, len, hot.Lane(), places)
