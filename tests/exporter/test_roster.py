"""Who stands for an (engine, rank): the newest live worker, else the newest dead one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Attach

    from ws_guard.exporter.snapshot import BoardWatch


def stand(watch: BoardWatch) -> tuple[list[str], list[str], int]:
    """(exported slots, slots aside, conflicts)."""
    roster = watch.read().roster
    return (
        [one.slot for one in roster.exported],
        [one.slot for one in roster.aside],
        roster.conflicts,
    )


def test_ranks_come_in_their_natural_order(attach: Attach, watch: BoardWatch) -> None:
    for engine, rank in (("0", "10"), ("0", "9"), ("x", "0"), ("10", "0"), ("2", "0")):
        attach(engine=engine, rank=rank)
    told = [one.worker.identity for one in watch.read().roster.exported]
    assert told == [("0", "9"), ("0", "10"), ("2", "0"), ("10", "0"), ("x", "0")]


def test_the_newest_of_two_live_ones_is_exported_and_the_other_counted(
    attach: Attach, watch: BoardWatch
) -> None:
    old, new = attach(), attach()
    assert stand(watch) == ([new.name], [old.name], 1)


def test_three_live_ones_are_two_conflicts(attach: Attach, watch: BoardWatch) -> None:
    names = [attach().name for _ in range(3)]
    assert stand(watch) == (names[2:], names[:2], 2)


def test_a_dead_one_that_was_replaced_is_nobody(attach: Attach, watch: BoardWatch) -> None:
    old, new = attach(), attach()
    old.die()
    assert stand(watch) == ([new.name], [], 0)


def test_a_dead_newer_one_gives_way_but_is_not_forgotten(attach: Attach, watch: BoardWatch) -> None:
    old, new = attach(), attach()
    new.die()
    assert stand(watch) == ([old.name], [new.name], 0)


def test_of_dead_ones_the_newest_stays(attach: Attach, watch: BoardWatch) -> None:
    old, new = attach(), attach()
    old.die()
    new.die()
    assert stand(watch) == ([new.name], [], 0)


@pytest.mark.parametrize("other", [{"rank": "1"}, {"engine": "1"}])
def test_other_identities_do_not_clash(
    attach: Attach, watch: BoardWatch, other: dict[str, str]
) -> None:
    attach()
    attach(**other)
    exported, aside, conflicts = stand(watch)
    assert (len(exported), aside, conflicts) == (2, [], 0)
