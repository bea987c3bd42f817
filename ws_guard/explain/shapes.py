"""Which calls a slab's size can be of: heads, rows and query lengths that ask for so many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .readings import Reading

#: A model's heads gathered over a group stay below; a divisor above is no head count.
MOST_HEADS = 1024
#: Query tokens of a row; more than any model's context.
MOST_Q_LEN = 1 << 20
MOST_BATCH = (1 << 31) - 1

_STATS_BYTES = 8


class Shape(NamedTuple):
    """Heads, rows, and the query lengths from `low` to `high` that ask for the same slab."""

    heads: int
    batch: int
    low: int
    high: int


def shapes_of(size: int, reading: Reading, heads: Iterable[int] | None) -> Iterator[Shape]:
    """Every shape whose slab has exactly the size; with `heads`, of one of these counts."""
    per_token = reading.rule == "stats_per_token"
    rounding = 1 if per_token else reading.layout.q_rounding
    guard = 0 if per_token else reading.layout.guard_bytes
    product, rest = divmod(size - guard, _STATS_BYTES * rounding)
    if rest or product <= 0:
        return
    for count in range(1, MOST_HEADS + 1) if heads is None else sorted(heads):
        if product % count == 0:
            units = product // count
            yield from _per_token(count, units) if per_token else _padded(count, units, rounding)


def _padded(heads: int, units: int, rounding: int) -> Iterator[Shape]:
    """`units` are rows times steps of `rounding` query tokens."""
    for steps in range(1, min(units, MOST_Q_LEN // rounding) + 1):
        if units % steps == 0 and units // steps <= MOST_BATCH:
            yield Shape(heads, units // steps, (steps - 1) * rounding + 1, steps * rounding)


def _per_token(heads: int, tokens: int) -> Iterator[Shape]:
    """Rows of one length; rows of several lengths ask the same for the same tokens."""
    if tokens > MOST_BATCH:
        return
    root = min(int(tokens**0.5) + 1, MOST_Q_LEN)
    for part in range(1, root + 1):
        if tokens % part == 0:
            for q_len in {part, tokens // part}:
                if q_len <= MOST_Q_LEN and tokens // q_len <= MOST_BATCH:
                    yield Shape(heads, tokens // q_len, q_len, q_len)


def each_once(shapes: Iterable[Shape]) -> list[Shape]:
    """Shapes in their order; those that differ in the longest row alone as the widest of them."""
    widest: dict[tuple[int, int, int], Shape] = {}
    for shape in shapes:
        key = shape.heads, shape.batch, shape.low
        known = widest.setdefault(key, shape)
        widest[key] = known._replace(high=max(known.high, shape.high))
    return list(widest.values())
