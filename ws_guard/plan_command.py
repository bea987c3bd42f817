"""`ws-guard plan` behind its flags: no engine, an engine, a launch command, or a sweep."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import console
from .exits import NO, YES
from .settings import parse_size
from .sizing import DEFAULT_SM_COUNT, DEFAULT_WORKSPACE_BYTES, InputError, Plan, sm_count_of_gpu

_NEUTRAL = {"tp": 1, "dcp": 1, "pcp": 1, "dp": 1, "max_q_len": 1}


class Asked(NamedTuple):
    """The flags as given: sizes and parallel sizes, what tells the engine, and the command."""

    arguments: Mapping[str, Any]
    engine: Mapping[str, str | None]
    command: list[str]


def run(asked: Asked, *, sweep: str | None, plot: str | None, as_json: bool) -> int:
    """Plan and print; the exit code."""
    try:
        return _run(asked, sweep, plot, as_json)
    except InputError as error:
        raise InputError(_in_flags(str(error), asked)) from None


def _in_flags(text: str, asked: Asked) -> str:
    """A text of the planner's names arguments, at its head and in its remedy: here they are flags.

    A value of the launch command is none of ours.
    """
    name = text.partition(" ")[0]
    if name in asked.arguments and not (asked.command and asked.arguments[name] is None):
        text = f"{_flag(name)}{text.removeprefix(name)}"
    remedy = "pass" if asked.command else "pass|change|lower|or"
    named = rf"\b({remedy}) ({'|'.join(asked.arguments)})\b"
    return re.sub(named, lambda match: f"{match[1]} {_flag(match[2])}", text)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _told(plan: Plan, asked: Asked) -> Plan:
    return plan._replace(notes=[_in_flags(note, asked) for note in plan.notes])


def _run(asked: Asked, sweep: str | None, plot: str | None, as_json: bool) -> int:
    arguments = dict(asked.arguments)
    workspace = arguments.pop("workspace_bytes")
    size = None if workspace is None else _size("--workspace-bytes", workspace)
    arguments["sm_count"] = _sm_count(arguments.pop("gpu"), arguments["sm_count"])
    name = asked.engine["engine"]
    if asked.command or name not in (None, "none"):
        if sweep is not None or plot is not None:
            raise InputError("--sweep and --plot need --engine none: pass --heads and so on")
        return _plan_engine(asked, {**arguments, "workspace_bytes": size}, as_json)
    for flag in ("model", "engine_version", "attention"):
        if asked.engine[flag] is not None:
            instead = "pass --engine vllm or sglang"
            raise InputError(f"{_flag(flag)} needs an engine: {instead}")
    for key, value in _NEUTRAL.items():
        arguments[key] = value if arguments[key] is None else arguments[key]
    arguments["workspace_bytes"] = DEFAULT_WORKSPACE_BYTES if size is None else size
    if arguments["heads"] is None and not (sweep or "").startswith("heads="):
        raise InputError("--heads is missing: pass the model's query heads")
    if sweep is not None:
        return _sweep(asked, sweep, arguments, plot, as_json)
    if plot is not None:
        raise InputError("--plot draws a sweep: pass --sweep as well")
    return _plan(asked, arguments, as_json)


def _plan(asked: Asked, arguments: dict[str, Any], as_json: bool) -> int:
    from . import planning

    result = _told(planning.plan(**arguments), asked)
    if as_json:
        console.print_json(result._asdict())
    else:
        print(console.plan_text(result))
    return YES if result.fits else NO


def _plan_engine(asked: Asked, arguments: dict[str, Any], as_json: bool) -> int:
    from . import console_sites, engine_planning
    from .engines import reader

    if asked.command and asked.engine["engine"] == "none":
        raise InputError("--engine none, but a launch command names its engine: leave --engine out")
    flashinfer = arguments.pop("flashinfer")
    told = reader.Asked(**{**asked.engine, **arguments})
    launch, notes = reader.read_launch(told, asked.command, os.environ)
    result = engine_planning.plan_launch(launch, flashinfer=flashinfer, notes=notes)
    result = result._replace(plan=_told(result.plan, asked))
    if as_json:
        console.print_json(result.as_dict())
    else:
        print(console_sites.engine_plan_text(result))
    return YES if result.plan.fits else NO


def _sweep(
    asked: Asked, text: str, arguments: dict[str, Any], plot: str | None, as_json: bool
) -> int:
    from . import sweep as sweeping

    result = sweeping.sweep(text, arguments)
    result = result._replace(plans=[_told(plan, asked) for plan in result.plans])
    if plot is not None:
        sweeping.plot(result, plot)
    if as_json:
        rows = zip(result.values, result.plans, strict=True)
        plans = [{"value": value, **each._asdict()} for value, each in rows]
        console.print_json({"parameter": result.parameter, "plans": plans})
    else:
        print(console.sweep_text(result.parameter, result.values, result.plans))
    return YES if all(each.fits for each in result.plans) else NO


def _size(flag: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise InputError(f"{flag}: {error}") from None


def _sm_count(gpu: str | None, sm_count: int | None) -> int:
    if gpu is not None and sm_count is not None:
        raise InputError("--gpu and --sm-count exclude each other: pass one")
    if gpu is not None:
        return sm_count_of_gpu(gpu)
    return DEFAULT_SM_COUNT if sm_count is None else sm_count
