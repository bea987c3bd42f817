"""`ws-guard plan` behind its flags: no engine, an engine, a launch command, or a sweep."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from . import console
from .exits import NO, YES
from .settings import parse_size
from .sizing import DEFAULT_SM_COUNT, DEFAULT_WORKSPACE_BYTES, InputError, Plan, sm_count_of_gpu

_NEUTRAL = {"tp": 1, "dcp": 1, "pcp": 1, "dp": 1, "max_q_len": 1}
_SIZES = ("heads", *_NEUTRAL, "max_num_batched_tokens", "max_num_seqs")
#: What the planner's texts may name.
_ARGUMENTS = (*_SIZES, "workspace_bytes", "flashinfer", "gpu", "sm_count")


class Asked(NamedTuple):
    """The options of `plan` as given, and the launch command behind them."""

    heads: int | None
    model: str | None
    tp: int | None
    dcp: int | None
    pcp: int | None
    dp: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_q_len: int | None
    workspace_bytes: str | None
    flashinfer: str | None
    gpu: str | None
    sm_count: int | None
    engine: str | None
    engine_version: str | None
    attention: str | None
    sweep: str | None
    plot: str | None
    as_json: bool
    command: list[str] | None

    def sizes(self) -> dict[str, Any]:
        """What is planned with or without an engine, by name; `InputError` for what is no size."""
        size = self.workspace_bytes
        return {
            **{name: getattr(self, name) for name in _SIZES},
            "workspace_bytes": None if size is None else _size("--workspace-bytes", size),
            "sm_count": _sm_count(self.gpu, self.sm_count),
        }


def run(asked: Asked) -> int:
    """Plan and print; the exit code."""
    try:
        return _run(asked)
    except InputError as error:
        raise InputError(_in_flags(str(error), asked)) from None


def _in_flags(text: str, asked: Asked) -> str:
    """A text of the planner's names arguments, at its head and in its remedy: here they are flags.

    A value of the launch command is none of ours.
    """
    name = text.partition(" ")[0]
    if name in _ARGUMENTS and not (asked.command and getattr(asked, name) is None):
        text = f"{_flag(name)}{text.removeprefix(name)}"
    remedy = "pass" if asked.command else "pass|change|lower|or"
    named = rf"\b({remedy}) ({'|'.join(_ARGUMENTS)})\b"
    return re.sub(named, lambda match: f"{match[1]} {_flag(match[2])}", text)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _told(plan: Plan, asked: Asked) -> Plan:
    return plan._replace(notes=[_in_flags(note, asked) for note in plan.notes])


def _run(asked: Asked) -> int:
    sizes = asked.sizes()
    if asked.command or asked.engine not in (None, "none"):
        if asked.sweep is not None or asked.plot is not None:
            raise InputError("--sweep and --plot need --engine none: pass --heads and so on")
        return _plan_engine(asked, sizes)
    for name in ("model", "engine_version", "attention"):
        if getattr(asked, name) is not None:
            instead = "pass --engine vllm or sglang"
            raise InputError(f"{_flag(name)} needs an engine: {instead}")
    if asked.heads is None and not (asked.sweep or "").startswith("heads="):
        raise InputError("--heads is missing: pass the model's query heads")
    defaults = {**_NEUTRAL, "workspace_bytes": DEFAULT_WORKSPACE_BYTES}
    given = {name: value for name, value in sizes.items() if value is not None}
    arguments = {**sizes, **defaults, **given, "flashinfer": asked.flashinfer}
    if asked.sweep is not None:
        return _sweep(asked, asked.sweep, arguments)
    if asked.plot is not None:
        raise InputError("--plot draws a sweep: pass --sweep as well")
    return _plan(asked, arguments)


def _plan(asked: Asked, arguments: dict[str, Any]) -> int:
    from . import planning

    result = _told(planning.plan(**arguments), asked)
    if asked.as_json:
        console.print_json(result._asdict())
    else:
        print(console.plan_text(result))
    return YES if result.fits else NO


def _plan_engine(asked: Asked, sizes: dict[str, Any]) -> int:
    from . import console_sites, engine_planning
    from .engines import reader

    if asked.command and asked.engine == "none":
        raise InputError("--engine none, but a launch command names its engine: leave --engine out")
    told = reader.Asked(
        engine=asked.engine,
        engine_version=asked.engine_version,
        model=asked.model,
        attention=asked.attention,
        **sizes,
    )
    launch, notes = reader.read_launch(told, asked.command or [], os.environ)
    result = engine_planning.plan_launch(launch, flashinfer=asked.flashinfer, notes=notes)
    result = result._replace(plan=_told(result.plan, asked))
    if asked.as_json:
        console.print_json(result.as_dict())
    else:
        print(console_sites.engine_plan_text(result))
    return YES if result.plan.fits else NO


def _sweep(asked: Asked, text: str, arguments: dict[str, Any]) -> int:
    from . import sweep as sweeping

    result = sweeping.sweep(text, arguments)
    result = result._replace(plans=[_told(plan, asked) for plan in result.plans])
    if asked.plot is not None:
        sweeping.plot(result, asked.plot)
    if asked.as_json:
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
