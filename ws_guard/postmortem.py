"""From the slots of workers that met an overflow or overrun to a table: what happened, what to set.

Plain text that survives a copy into a ticket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from .exporter.derive import Observed
from .exporter.events import Event, events_of
from .units import count, human_bytes, ranges

#: What a worker got over is no trouble: a call that was split succeeded.
_TROUBLES = ("observed", "raised")
_MOST_ROWS = 20


class Trouble(NamedTuple):
    """One call that did not fit, and everybody who met it. Sizes in bytes; None: not known.

    `ranks` are "engine/rank", `times` how often they met it in all, `last` the newest moment (ISO
    8601). `recommended_bytes` and `env` say what to set; `layout` is the worker's FlashInfer's.
    """

    kind: str
    ranks: tuple[str, ...]
    times: int
    last: str
    op: str
    workspace: str | None
    batch: int | None
    heads: int | None
    q_len: int | None
    need_bytes: int | None
    workspace_bytes: int | None
    slab: str | None
    slab_bytes: int | None
    available_bytes: int | None
    threshold_batch: int | None
    recommended_bytes: int | None
    env: tuple[tuple[str, str], ...]
    layout: str | None = None


def find_troubles(slots: Iterable[Observed]) -> list[Trouble]:
    """Every call that did not fit, ranks with the same one together; newest first."""
    met: dict[Trouble, Trouble] = {}
    events = ((slot.worker.layout, event) for slot in slots for event in events_of(slot))
    for layout, event in events:
        if event["event"] in ("overflow", "overrun") and event["action"] in _TROUBLES:
            trouble = _trouble(event)._replace(layout=layout)
            call = trouble._replace(ranks=(), times=0, last="")
            met[call] = _together(met[call], trouble) if call in met else trouble
    # Reversed afterwards, so that of the same millisecond the one told last comes first.
    return sorted(met.values(), key=lambda trouble: trouble.last)[::-1]


def _trouble(event: Event) -> Trouble:
    """An event as a trouble of one rank; one that left the ring is known by its op alone."""
    return Trouble(
        kind=event["event"],
        ranks=(f"{event['engine']}/{event['rank']}",),
        times=event.get("count", 1),
        last=event["time"],
        op=event["op"],
        workspace=event.get("workspace"),
        batch=event.get("batch"),
        heads=event.get("heads"),
        q_len=event.get("q_len"),
        need_bytes=event.get("need_bytes"),
        workspace_bytes=event.get("workspace_bytes"),
        slab=event.get("slab"),
        slab_bytes=event.get("slab_bytes"),
        available_bytes=event.get("available_bytes"),
        threshold_batch=event.get("overflow_threshold_batch"),
        recommended_bytes=event.get("recommended_workspace_bytes"),
        env=tuple(event.get("env", {}).items()),
    )


def _together(one: Trouble, other: Trouble) -> Trouble:
    return one._replace(
        ranks=tuple(dict.fromkeys(one.ranks + other.ranks)),
        times=one.times + other.times,
        last=max(one.last, other.last),
    )


# -- text -----------------------------------------------------------------------------------------

_HEAD = ("batch", "heads", "q_len", "need", "slab asks", "available", "calls", "last (UTC)")


def text(troubles: list[Trouble], verdicts: Sequence[str] = ()) -> str:
    """A table of calls, the verdict on each as `explain` gives it, then what to set."""
    shown = troubles[:_MOST_ROWS]
    rows = [_HEAD, *map(_cells, shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["", "ws-guard post-mortem: native calls that did not fit their workspace", ""]
    lines.append(_line(_HEAD, widths))
    for trouble, cells in zip(shown, rows[1:], strict=True):
        lines += [_line(cells, widths), *(f"    {line}" for line in _details(trouble))]
    if len(troubles) > len(shown):
        lines.append(f"  and {len(troubles) - len(shown)} more")
    lines += ["", *(f"  {verdict}" for verdict in verdicts[:_MOST_ROWS])] if verdicts else []
    return "\n".join([*lines, "", *(f"  {line}" for line in _advice(troubles)), ""])


def _cells(trouble: Trouble) -> tuple[str, ...]:
    numbers = (
        trouble.batch,
        trouble.heads,
        trouble.q_len,
        trouble.need_bytes,
        trouble.slab_bytes,
        trouble.available_bytes,
        trouble.times,
    )
    moment = trouble.last.replace("T", " ").partition("+")[0]
    return (*map(count, numbers), moment)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  " + "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _details(trouble: Trouble) -> Iterator[str]:
    fate = "refused" if trouble.kind == "overflow" else "written beyond its end"
    yield f"rank {', '.join(_ranges(trouble.ranks))}: {trouble.op}"
    where = trouble.workspace or "?"
    if trouble.workspace_bytes is not None:
        where += f" of {human_bytes(trouble.workspace_bytes)}"
    yield f"{trouble.slab or 'a slab'} {fate} in workspace {where}"


def _advice(troubles: list[Trouble]) -> Iterator[str]:
    """What to set for each workspace, by the trouble that asks most of it."""
    worst: dict[str | None, Trouble] = {}
    for trouble in troubles:
        known = worst.get(trouble.workspace)
        if known is None or _asked(trouble) > _asked(known):
            worst[trouble.workspace] = trouble
    for workspace, trouble in worst.items():
        if advice := what_to_set(trouble):
            yield f"set: {advice}"
        else:
            yield f"what workspace {workspace or '?'} needs is not known: see the engine's log"
    if any(trouble.kind == "overrun" for trouble in troubles):
        yield "memory behind the workspace was overwritten: results since then are suspect"


def _asked(trouble: Trouble) -> int:
    return max(trouble.recommended_bytes or 0, trouble.need_bytes or 0)


def what_to_set(trouble: Trouble) -> str:
    """The setting that lets such a call fit, or the steps to stay below; "" where none is known."""
    ways = []
    if trouble.env:
        ways.append(" ".join(f"{name}={value}" for name, value in trouble.env))
    elif trouble.recommended_bytes is not None:
        ways.append(f"workspace {trouble.workspace} to {human_bytes(trouble.recommended_bytes)}")
    if trouble.threshold_batch:
        ways.append(f"steps to at most {trouble.threshold_batch:,} rows")
    return ", or ".join(ways)


def _ranges(ranks: tuple[str, ...]) -> list[str]:
    """`0/0-7` for engine 0, ranks 0 to 7; names stay as they are."""
    pairs = (name.rpartition("/")[::2] for name in ranks)
    return [
        f"{engine}/{span}"
        for engine, of_engine in groupby(pairs, key=itemgetter(0))
        for span in ranges(rank for _, rank in of_engine)
    ]
