"""Numbers for people: bytes, counts, ranges."""

from __future__ import annotations

from collections.abc import Iterable


def short_bytes(size: int | None) -> str:
    """`394.0 MiB`; `?` for what is not known."""
    if size is None:
        return "?"
    magnitude = float(abs(size))
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if magnitude < 1024 or unit == "TiB":
            break
        magnitude /= 1024
    number = f"{magnitude:.0f}" if unit == "B" else f"{magnitude:,.1f}"
    return f"{'-' if size < 0 else ''}{number} {unit}"


def human_bytes(size: int) -> str:
    """`413,138,944 B (394.0 MiB)`."""
    return f"{size:,} B" if abs(size) < 1024 else f"{size:,} B ({short_bytes(size)})"


def count(number: int | None) -> str:
    """`16,384`; `?` for what is not known."""
    return "?" if number is None else f"{number:,}"


def ranges(numbers: Iterable[str]) -> list[str]:
    """`0-3` for 0, 1, 2, 3, each told once; names stay as they are."""
    runs: list[list[str]] = []
    for number in dict.fromkeys(numbers):
        if runs and _follows(runs[-1][-1], number):
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def _follows(one: str, other: str) -> bool:
    numeric = one.isascii() and one.isdigit() and other.isascii() and other.isdigit()
    return numeric and int(other) == int(one) + 1
