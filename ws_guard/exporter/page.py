"""The status page: ready or not and why, in the three seconds that an on-call engineer has.

Rendered here, so that it reads without scripts too; a small script swaps in what has changed. Every
text from a slot goes through `escape`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from ws_guard.units import count, short_bytes

from .checks import what_to_set
from .model import Check, Health, Numbers, Worker, Workspace
from .page_rows import pill, rows_of, worker_rows
from .ranking import least_ratio

_SHOWN_EVENTS = 10
_SHOWN_ADVICE = 3
_DENSE_WORKERS = 16
_NO_ROWS = '<tr><td class="left" colspan="8">no worker has attached yet</td></tr>'

_TEXT = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
_TEMPLATE = Template(_TEXT)


def _hash(tag: str) -> str:
    """The CSP source of the template's one inline `tag`."""
    match = re.search(rf"<{tag}>(.*?)</{tag}>", _TEXT, re.DOTALL)
    assert match is not None  # noqa: S101 - our own page
    digest = hashlib.sha256(match[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


#: Nothing but the template's own style and script runs, and nothing is loaded from elsewhere.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_hash('style')}",
        f"script-src {_hash('script')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


def render(health: Health, events: Sequence[dict[str, Any]]) -> str:
    """The page for a board's health and its last events, newest first."""
    verdict, state = ("Ready", "ok") if health.ready else ("Not ready", "fail")
    return _TEMPLATE.substitute(
        title=f"{verdict} · ws_guard",
        name=_name(health.workers),
        verdict=f'<span class="{state}"><span class="dot" aria-hidden="true"></span>'
        f"{verdict}</span>",
        why="".join(_why(check) for check in health.checks if check.state in ("fail", "warn")),
        facts=_facts(health.workers),
        advice=_advice(health.workers),
        density="dense" if len(health.workers) > _DENSE_WORKERS else "",
        rows="".join(worker_rows(health.workers)) or _NO_ROWS,
        checks="".join(_check(check) for check in health.checks),
        events=_events(events),
        problems=_problems(health.workers),
    )


def _name(workers: Sequence[Worker]) -> str:
    told = dict.fromkeys(_told(worker) for worker in workers)
    return " · ".join(["ws_guard", *map(escape, list(told)[:3])])


def _told(worker: Worker) -> str:
    info = worker.info
    parts = [
        info["model_name"],
        f"{info['engine_name']} {info['engine_version']}".strip(),
        f"FlashInfer {info['flashinfer_version']}" if info["flashinfer_version"] else "",
        f"layout {worker.layout}" if worker.layout else "",
        f"tp {info['tp']} dcp {info['dcp']}" if info["tp"] and info["dcp"] else "",
    ]
    return ", ".join(filter(None, parts)) or "worker"


def _why(check: Check) -> str:
    return f'<li class="{check.state}"><b>{check.name}</b>: {escape(check.detail)}</li>'


def _facts(workers: Sequence[Worker]) -> str:
    live = sum(worker.alive for worker in workers)
    ratios = [ratio for worker in workers if (ratio := least_ratio(worker)) is not None]
    ops = [op for worker in workers for op in worker.ops]
    facts = {
        "Workers alive": f"{live:,} of {len(workers):,}",
        "Least margin": f"{min(ratios):.1%}" if ratios else "?",
        "Overflows": f"{sum(sum(op.overflows.values()) for op in ops):,}",
        "Overruns": f"{sum(sum(op.overruns.values()) for op in ops):,}",
        "Native calls": f"{sum(sum(op.calls.values()) for op in ops):,}",
    }
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())


def _advice(workers: Sequence[Worker]) -> str:
    """What to set, once for each distinct advice."""
    lines = dict[str, None]()
    for worker in workers:
        for site in worker.workspaces:
            for _, numbers in site.known:
                if not numbers.fits:
                    lines.setdefault(_advice_line(site, numbers))
                    break
    if not lines:
        return ""
    return (
        '<section class="advice" aria-label="What to set"><h2>What to set</h2>'
        + "".join(list(lines)[:_SHOWN_ADVICE])
        + "</section>"
    )


def _advice_line(site: Workspace, numbers: Numbers) -> str:
    name = escape(site.workspace)
    reach = ""
    if numbers.overflow_threshold_batch is not None:
        reach = f", {numbers.overflow_threshold_batch:,} rows at most"
    setting = " ".join(f"<code>{escape(f'{k}={v}')}</code>" for k, v in numbers.env.items())
    setting = setting or escape(what_to_set(numbers).capitalize())
    return (
        f"<p>{setting}</p><p><b>{name}</b> has {short_bytes(numbers.workspace_bytes)}{reach}; "
        f"{count(numbers.batch)} rows need {short_bytes(numbers.need_bytes)}.</p>"
    )


def _check(check: Check) -> str:
    return (
        f"<li>{pill(check.state, check.state)}"
        f'<span class="what"><b>{check.name}</b> <small>{escape(check.detail)}</small></span></li>'
    )


def _events(events: Sequence[dict[str, Any]]) -> str:
    if not events:
        return ""
    items = "".join(_event(event) for event in events[:_SHOWN_EVENTS])
    return f'<h2>Last events</h2><ul class="list">{items}</ul>'


def _event(event: dict[str, Any]) -> str:
    """One event of the log: `death` has no op, and one told by its number alone no call."""
    words = [f"engine {event['engine']} rank {event['rank']}"]
    if "op" in event:
        words.append(f"{event['op']} {event['action']}")
    if "count" in event:
        words.append(f"{event['count']:,} times")
    if "need_bytes" in event:
        words.append(
            f"{rows_of(event['batch'])} need {short_bytes(event['need_bytes'])} "
            f"of {short_bytes(event['workspace_bytes'])}"
        )
    moment = escape(event["time"])
    handled = event["event"] == "overflow" and event["action"] in ("raised", "split")
    return (
        f"<li>{pill('warn' if handled else 'fail', event['event'])}"
        f'<time datetime="{moment}">{moment[:19].replace("T", " ")}</time>'
        f'<span class="what">{escape(", ".join(words))}</span></li>'
    )


def _problems(workers: Sequence[Worker]) -> str:
    """What workers complained of, once for each complaint."""
    who: dict[str, list[str]] = {}
    for worker in workers:
        for problem in (*worker.problems, *worker.warnings):
            who.setdefault(problem, []).append(f"{worker.engine} / {worker.rank}")
    items = "".join(
        f'<li>{pill("warn", _some(ranks))}<span class="what">{escape(problem)}</span></li>'
        for problem, ranks in who.items()
    )
    return f'<h2>Problems that workers report</h2><ul class="list">{items}</ul>' if items else ""


def _some(ranks: Sequence[str]) -> str:
    return ranks[0] if len(ranks) == 1 else f"{len(ranks)} ranks"
