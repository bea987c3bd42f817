"""Which layout a FlashInfer release carves by, and which GPU has how many SMs: facts, as data.

Where FlashInfer is installed its own source decides (room `contract`); these ranges are for when
there is none.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import InputError
from .layouts import LAYOUTS, Layout

#: First release of each layout. The counter stands at the head since 0.3.0; older is not known.
FIRST_RELEASES: tuple[tuple[str, str], ...] = (("0.3.0", "A"), ("0.6.12", "B"), ("0.6.15", "C"))
#: The span whose launcher source was read and whose carves were compared with the real launcher.
OLDEST_SEEN, NEWEST_SEEN = "0.6.8.post1", "0.7.4"

#: SMs by GPU name. NVIDIA's figure for Blackwell Ultra is an upper bound: cards may report fewer.
SM_COUNTS: dict[str, int] = {"b200": 148, "gb200": 152, "b300": 160, "gb300": 160}
DEFAULT_SM_COUNT = SM_COUNTS["b200"]


class Release(NamedTuple):
    """A FlashInfer version as far as it orders: release numbers, and whether it comes before."""

    numbers: tuple[int, int, int]
    final: bool


_VERSION = (
    r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:\.?(a|b|rc)\d+)?(?:\.?post\d+)?(?:[.-]?(dev)\d*)?"
    r"(?:\+[\w.]+)?"
)


def parse_release(version: str) -> Release:
    """Order a FlashInfer version; a dev build or candidate comes before its release."""
    match = re.fullmatch(_VERSION, version.strip())
    if match is None:
        raise InputError(f"flashinfer must be a release such as {NEWEST_SEEN}, got {version!r}")
    major, minor, patch, candidate, dev = match.groups()
    numbers = (int(major), int(minor), int(patch or 0))
    return Release(numbers, candidate is None and dev is None)


def layouts_of_release(version: str) -> tuple[Layout, ...]:
    """The layout of a release; both neighbours where an unfinished build stands on a boundary."""
    release = parse_release(version)
    reached: list[Layout] = []
    for first, name in FIRST_RELEASES:
        boundary = parse_release(first).numbers
        if release.numbers < boundary:
            break
        if release.numbers > boundary or release.final:
            reached.clear()
        reached.append(LAYOUTS[name])
    if not reached:
        raise InputError(
            f"flashinfer {version} is older than {FIRST_RELEASES[0][0]}, the oldest whose "
            "workspace layout is known; pass a newer release"
        )
    return tuple(reached)


def is_newer_than_seen(version: str) -> bool:
    """Whether a release lies beyond the newest whose launcher was looked at."""
    return parse_release(version).numbers > parse_release(NEWEST_SEEN).numbers


def sm_count_of_gpu(name: str) -> int:
    """SMs of a GPU by its name, upper or lower case."""
    try:
        return SM_COUNTS[name.lower()]
    except KeyError:
        known = ", ".join(SM_COUNTS)
        raise InputError(f"gpu must be one of {known} (or pass sm_count), got {name!r}") from None
