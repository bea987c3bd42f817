"""`ws-guard explain` behind its flags: a log, or a board."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from .console import print_json
from .exits import NO, YES
from .remarks import remark
from .settings import Settings
from .sizing import InputError

if TYPE_CHECKING:
    from .explain.board import Explained
    from .explain.finding import Finding


def run(path: str | None, settings: Settings, *, on_board: bool, as_json: bool) -> int:
    """Explain and print; the exit code: 0 found, 1 nothing known was found."""
    if on_board and path is not None:
        raise InputError("--board and a log exclude each other: pass one")
    if on_board:
        return _board(settings, as_json)
    if path is None and _is_terminal():
        raise InputError("no log: name a file, pipe one in, or pass --board")
    from .explain.logs import read_log

    name = "-" if path is None else os.path.expanduser(path)
    told = read_log(name)
    where = "standard input" if name == "-" else name
    nothing = f"no known fault of a workspace in {where}"
    if told.cut:
        nothing = (
            f"a fault of a workspace is in {where}, but its line is cut before the numbers: "
            "get the whole line"
        )
    return _tell(told.findings, as_json, nothing)


def _board(settings: Settings, as_json: bool) -> int:
    from .explain.board import explain_board

    told = explain_board(settings)
    nothing = _nothing(settings.board, told)
    beside = {
        "dead": told.dead,
        "last_calls": told.last_calls,
        "passed_over": told.passed_over,
    }
    code = _tell(told.findings, as_json, nothing, beside)
    if told.passed_over:
        remark(f"ws-guard: {told.passed_over}")
    for rank, calls in () if as_json else told.last_calls.items():
        print(f"\nlast calls of {rank}, which died:")
        for call in calls:
            print(f"  {_moment(call)}  {call['op']}  {call['batch']:,} rows  {call['outcome']}")
    return code


def _moment(call: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(call["timestamp_seconds"], timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _nothing(board: str, told: Explained) -> str:
    died = f"died: {', '.join(told.dead)}" if told.dead else "no worker died"
    return f"no call on board {board} that did not fit; {died}"


def _tell(
    findings: list[Finding], as_json: bool, nothing: str, beside: dict[str, Any] | None = None
) -> int:
    if as_json:
        print_json({"findings": [each.as_dict() for each in findings], **(beside or {})})
    elif findings:
        from .explain.text import findings_text

        print(findings_text(findings))
    if not findings:
        remark(f"ws-guard: {nothing}")
    return YES if findings else NO


def _is_terminal() -> bool:
    return sys.stdin is not None and os.isatty(sys.stdin.fileno())
