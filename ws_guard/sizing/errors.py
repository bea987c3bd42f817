"""The one error that sizing raises, and the check of whole numbers that raises it."""

from __future__ import annotations

#: The launcher counts in 32 bits.
INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


class InputError(ValueError):
    """An input that no deployment can have; the text names it and what to pass instead."""


def whole(name: str, value: object, *, least: int, most: int = _INT64_MAX) -> int:
    """`value` as an int within [least, most], or an `InputError` that names it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number, got {value!r}")
    if not least <= value <= most:
        # Python refuses to write down a number of thousands of digits.
        got = f"{value:,}" if abs(value) < 1 << 128 else "a number far beyond"
        raise InputError(f"{name} must be between {least:,} and {most:,}, got {got}")
    return value
