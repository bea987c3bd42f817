"""Numbers as people read them."""

from __future__ import annotations

import pytest

from ws_guard.units import count, human_bytes, ranges, short_bytes


@pytest.mark.parametrize(
    ("size", "short", "human"),
    [
        (0, "0 B", "0 B"),
        (-1_023, "-1023 B", "-1,023 B"),
        (1_024, "1.0 KiB", "1,024 B (1.0 KiB)"),
        # 394 * 2^20.
        (413_138_944, "394.0 MiB", "413,138,944 B (394.0 MiB)"),
        # 1.624 * 2^30.
        (-1_743_781_888, "-1.6 GiB", "-1,743,781,888 B (-1.6 GiB)"),
        # No unit is above it.
        (1 << 50, "1,024.0 TiB", "1,125,899,906,842,624 B (1,024.0 TiB)"),
    ],
)
def test_bytes(size: int, short: str, human: str) -> None:
    assert (short_bytes(size), human_bytes(size)) == (short, human)


def test_what_is_not_known() -> None:
    assert (short_bytes(None), count(None), count(16_384)) == ("?", "?", "16,384")


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([], []),
        (["7"], ["7"]),
        (["0", "1", "2", "4", "8", "9"], ["0-2", "4", "8-9"]),
        # Told once; what is no number stands for itself.
        (["3", "3", "4", "a", "b", "5"], ["3-4", "a", "b", "5"]),
        # A digit of another script is a name.
        (["1", "\u0662"], ["1", "\u0662"]),
    ],
)
def test_ranges(numbers: list[str], told: list[str]) -> None:
    assert ranges(numbers) == told
