"""Who stands for an (engine, rank) when several slots of a board claim it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .derive import Observed


class Roster(NamedTuple):
    """The workers of a board.

    `exported` has one per (engine, rank): the newest live one, else the newest dead. `aside` are
    those that matter to health but not to metrics: live ones that clash with a newer one, and a
    dead one that is newer than the live one it clashed with. Older dead ones are superseded.
    """

    exported: tuple[Observed, ...]
    aside: tuple[Observed, ...]
    conflicts: int

    @property
    def everyone(self) -> tuple[Observed, ...]:
        """All that matter to health."""
        return self.exported + self.aside


def call_roster(observed: Iterable[Observed]) -> Roster:
    """Sort out identities. Only live workers count as a conflict."""
    claims: dict[tuple[str, str], list[Observed]] = {}
    for one in observed:
        claims.setdefault(one.worker.identity, []).append(one)
    exported, aside, conflicts = [], [], 0
    for identity in sorted(claims, key=_natural):
        claimants = sorted(claims[identity], key=lambda one: (one.attached_ns, one.slot))
        newest = claimants[-1]
        live = [one for one in claimants if one.worker.alive]
        chosen = live.pop() if live else newest
        exported.append(chosen)
        aside += live if newest is chosen else [*live, newest]
        conflicts += len(live)
    return Roster(tuple(exported), tuple(aside), conflicts)


def _natural(identity: tuple[str, str]) -> list[tuple[int, int, str]]:
    """Numbers in their order, and before names."""
    return [
        (0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part)
        for part in identity
    ]
