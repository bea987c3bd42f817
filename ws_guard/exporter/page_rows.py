"""The rows of the status page's table: a worker's workspace with its bar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from ws_guard.units import count, short_bytes

from .model import Numbers, Worker, Workspace
from .ranking import site_urgency, tightest, worker_urgency

_BAR_WIDTH = 1000


def worker_rows(workers: Iterable[Worker]) -> Iterator[str]:
    """A table row for each worker and workspace, worst first."""
    for worker in sorted(workers, key=worker_urgency):
        for site in sorted(worker.workspaces, key=site_urgency):
            yield f"<tr>{_who(worker)}{_site_cells(site)}</tr>"
        if not worker.workspaces:
            told = "uses no workspace" if worker.plan_known else "no native call yet"
            yield f'<tr>{_who(worker)}<td class="left" colspan="6">{told}</td></tr>'


def _who(worker: Worker) -> str:
    state, word = _state(worker)
    return (
        f'<th class="left" scope="row">{escape(worker.engine)} / {escape(worker.rank)}</th>'
        f'<td class="left">{pill(state, word)}</td>'
    )


def _state(worker: Worker) -> tuple[str, str]:
    """As the checks judge it: an overflow that was raised or split is a warning."""
    if not worker.alive:
        return "fail", "dead"
    if any(op.overruns for op in worker.ops):
        return "fail", "overran"
    actions = {action for op in worker.ops for action in op.overflows}
    if "observed" in actions:
        return "fail", "overflowed"
    handled = next((action for action in ("raised", "split") if action in actions), None)
    return ("warn", handled) if handled else ("ok", "alive")


def pill(state: str, word: str) -> str:
    """A word on the colour of a state."""
    return f'<span class="pill {state}">{escape(word)}</span>'


def _site_cells(site: Workspace) -> str:
    return (
        f'<td class="left">{escape(site.workspace)}<br>'
        f"<small>{short_bytes(site.workspace_bytes)}</small></td>"
        f'<td class="bar">{_bar(site)}</td>'
        f"<td>{_basis_cell(site.peak)}</td><td>{_basis_cell(site.planned)}</td>"
        f"<td>{_threshold_cell(site.overflow_threshold_batch)}</td><td>{_margin_cell(site)}</td>"
    )


def _basis_cell(numbers: Numbers | None) -> str:
    if numbers is None:
        return '<span class="unknown">?</span>'
    return f"{short_bytes(numbers.need_bytes)}<br><small>{rows_of(numbers.batch)}</small>"


def rows_of(batch: int | None) -> str:
    """A batch in words."""
    return "1 row" if batch == 1 else f"{count(batch)} rows"


def _threshold_cell(threshold: int | None) -> str:
    return '<span class="unknown">none</span>' if threshold is None else rows_of(threshold)


def _margin_cell(site: Workspace) -> str:
    numbers = tightest(site)
    if numbers is None or numbers.margin_ratio is None:
        return '<span class="unknown">?</span>'
    state = "ok" if numbers.fits else "fail"
    return (
        f'<b class="{state}">{short_bytes(numbers.margin_bytes)}</b><br>'
        f"<small>{numbers.margin_ratio:.1%}</small>"
    )


def _bar(site: Workspace) -> str:
    """Peak as a filled bar, plan and end of the workspace as lines, all on one scale of bytes."""
    size = site.workspace_bytes
    peak = site.peak.need_bytes if site.peak else None
    planned = site.planned.need_bytes if site.planned else None
    if not size:
        return ""
    scale = max(size, peak or 0, planned or 0)

    def at(bytes_: int) -> str:
        return f"{_BAR_WIDTH * bytes_ / scale:.1f}"

    def span(css: str, start: int, end: int, inset: int) -> str:
        if end <= start:
            return ""
        return (
            f'<rect class="{css}" x="{at(start)}" y="{inset}" '
            f'width="{_BAR_WIDTH * (end - start) / scale:.1f}" height="{18 - 2 * inset}"/>'
        )

    def mark(css: str, where: int) -> str:
        # Half a stroke inside the picture, so that a mark at its edge is seen whole.
        x = min(max(_BAR_WIDTH * where / scale, 3), _BAR_WIDTH - 3)
        return f'<line class="{css}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="18"/>'

    parts = [span("track", 0, size, 2)]
    if planned is not None:
        parts.append(span("above", size, planned, 2))
    if peak is not None:
        parts += [span("peak", 0, min(peak, size), 5), span("over", size, peak, 5)]
    parts.append(mark("end", size))
    if planned is not None:
        parts.append(mark("planned", planned))
    label = escape(
        f"workspace {short_bytes(size)}, peak {short_bytes(peak)}, planned {short_bytes(planned)}"
    )
    return (
        f'<svg viewBox="0 0 {_BAR_WIDTH} 18" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )
