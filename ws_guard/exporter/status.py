"""A board in a terminal: the same view as the page, for `ws-guard status`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ws_guard.board import BoardError, open_board
from ws_guard.remarks import remark
from ws_guard.settings import SettingError, Settings
from ws_guard.units import count, short_bytes

from .checks import examine
from .model import Health, Numbers, State, Worker, Workspace
from .ranking import site_urgency, tightest, worker_urgency
from .snapshot import BoardWatch, Snapshot

_LEAST_CELLS, _BAR_CELLS = 8, 24
#: What the table takes with the shortest bar: below it there is none.
_TABLE_CELLS = 80
_WATCH_SECONDS = 1.0
_STYLES: dict[State, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}


def show(settings: Settings, *, watch: bool = False, as_json: bool = False) -> int:
    """Show the board once, or until Ctrl-C; 0 if it is ready, 1 if not, 2 if it is unreadable.

    `SettingError` if the settings name a group that does not exist.
    """
    try:
        board = open_board(settings.board, settings.board_group, settings.trusted_uids)
    except BoardError as error:
        raise SettingError(str(error)) from None
    reader = BoardWatch(board)
    snapshot = reader.read()
    if as_json and watch:
        snapshot = _watch_json(reader, settings)
    elif as_json:
        print(json.dumps(asdict(examine(snapshot, settings)), indent=2))
    elif watch:
        snapshot = _watch(reader, settings)
    else:
        Console().print(render(snapshot, settings))
    if snapshot.fault:
        remark(f"ws-guard: board {settings.board}: {snapshot.fault}; --board names another")
        return 2
    return 0 if examine(snapshot, settings).ready else 1


def _watch(reader: BoardWatch, settings: Settings) -> Snapshot:
    snapshot = reader.read()
    with suppress(KeyboardInterrupt), Live(render(snapshot, settings), auto_refresh=False) as live:
        while True:
            time.sleep(_WATCH_SECONDS)
            snapshot = reader.read()
            live.update(render(snapshot, settings), refresh=True)
    return snapshot


def _watch_json(reader: BoardWatch, settings: Settings) -> Snapshot:
    """A compact document on each line, for whoever reads it by lines."""
    snapshot = reader.read()
    with suppress(KeyboardInterrupt):
        while True:
            document = asdict(examine(snapshot, settings))
            print(json.dumps(document, separators=(",", ":")), flush=True)
            time.sleep(_WATCH_SECONDS)
            snapshot = reader.read()
    return snapshot


def render(snapshot: Snapshot, settings: Settings) -> RenderableType:
    """Verdict, what is wrong, and a row for each worker and workspace, worst first."""
    health = examine(snapshot, settings)
    table = _Workers(health.workers) if health.workers else _nobody(snapshot, settings)
    return Group(_verdict(health), *_wrong(health), table)


def _nobody(snapshot: Snapshot, settings: Settings) -> Text:
    absent = "; it is not there, --board or WS_GUARD_BOARD names another"
    where = f"  board {settings.board}{absent if snapshot.state == 'absent' else ''}"
    return Text(f"  no worker has attached yet\n{where}", "dim")


def _verdict(health: Health) -> Text:
    return Text("READY", "bold green") if health.ready else Text("NOT READY", "bold red")


def _wrong(health: Health) -> list[Text]:
    return [
        Text.assemble((f"  {check.name}: ", _STYLES[check.state]), check.detail)
        for check in health.checks
        if check.state in ("fail", "warn")
    ]


class _Workers:
    """Every worker and workspace, worst first: a table where the terminal is wide enough."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = sorted(workers, key=worker_urgency)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= _TABLE_CELLS:
            yield _table(self._workers)
        else:
            yield from _blocks(self._workers, options.max_width)
        yield Text("█ peak  ┃ planned  │ end of the workspace", "dim italic")


def _blocks(workers: list[Worker], width: int) -> Iterator[Text]:
    """A few short lines for each workspace."""
    for worker in workers:
        for site in sorted(worker.workspaces, key=site_urgency):
            name, size = site.workspace, short_bytes(site.workspace_bytes)
            yield Text("  ").join([*_who(worker), Text(f"{name}, {size}")])
            yield Text("  ").append(bar(site, min(_BAR_CELLS, max(width - 2, _LEAST_CELLS))))
            for basis, numbers in (("peak", site.peak), ("planned", site.planned)):
                yield Text(f"  {basis:<10}").append(_basis(numbers, ", "))
            yield Text("  threshold ").append(_threshold(site))
            yield Text("  margin    ").append(_margin(site))
        if not worker.workspaces:
            yield Text("  ").join([*_who(worker), Text("no native call yet")])


def _table(workers: list[Worker]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("rank", "state", "workspace", "need"):
        table.add_column(name, overflow="fold")
    for name in ("peak", "planned", "threshold", "margin"):
        table.add_column(name, justify="right", no_wrap=True)
    for worker in workers:
        for site in sorted(worker.workspaces, key=site_urgency):
            table.add_row(*_who(worker), *_cells(site))
        if not worker.workspaces:
            table.add_row(*_who(worker), "no native call yet")
    return table


def _who(worker: Worker) -> tuple[Text, Text]:
    # As Text: a name from a slot must not be read as markup.
    state = Text("alive", "green") if worker.alive else Text("dead", "bold red")
    return Text(f"{worker.engine}/{worker.rank}"), state


def _cells(site: Workspace) -> tuple[RenderableType, ...]:
    return (
        Text(f"{site.workspace}\n{short_bytes(site.workspace_bytes)}"),
        _Bar(site),
        _basis(site.peak),
        _basis(site.planned),
        _threshold(site),
        _margin(site),
    )


def _basis(numbers: Numbers | None, between: str = "\n") -> Text:
    if numbers is None:
        return Text("?", "dim")
    return Text(f"{short_bytes(numbers.need_bytes)}{between}{count(numbers.batch)} rows")


def _threshold(site: Workspace) -> Text:
    threshold = site.overflow_threshold_batch
    return Text("none" if threshold is None else count(threshold))


def _margin(site: Workspace) -> Text:
    least = tightest(site)
    if least is None:
        return Text("?", "dim")
    return Text(short_bytes(least.margin_bytes), "green" if least.fits else "bold red")


class _Bar:
    """A bar as wide as the terminal allows."""

    def __init__(self, site: Workspace) -> None:
        self._site = site

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield bar(self._site, min(options.max_width, _BAR_CELLS))

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(_LEAST_CELLS, options.max_width), _BAR_CELLS)


def bar(site: Workspace, cells: int = _BAR_CELLS) -> Text:
    """The workspace from 0 to its end, or to the need where that is more."""
    size = site.workspace_bytes
    if not size:
        return Text()
    peak = (site.peak.need_bytes if site.peak else None) or 0
    planned = site.planned.need_bytes if site.planned else None
    scale = max(size, peak, planned or 0)

    def cell(where: int) -> int:
        return min(cells - 1, cells * where // scale)

    text = Text()
    for index in range(cells):
        inside = index <= cell(size)
        if planned is not None and index == cell(planned):
            text.append("┃", "bold" if planned <= size else "bold red")
        elif index < cells * peak / scale:
            text.append("█", "blue" if inside else "red")
        elif index == cell(size):
            text.append("│", "dim")
        else:
            text.append("·" if inside else " ", "dim")
    return text
