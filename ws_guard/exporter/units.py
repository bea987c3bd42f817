"""Numbers for people."""

from __future__ import annotations


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


def count(number: int | None) -> str:
    """`16,384`; `?` for what is not known."""
    return "?" if number is None else f"{number:,}"
