"""`plan --sweep`: one plan for each value of a parameter, as a table or a plot."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from .planning import plan
from .sizing import InputError, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Parameter as written on the command line -> argument of `plan`.
PARAMETERS = {
    "tokens": "max_num_batched_tokens",
    "dcp": "dcp",
    "tp": "tp",
    "heads": "heads",
    "q-len": "max_q_len",
}


class Sweep(NamedTuple):
    """Plans over one parameter, in the order in which the values were given."""

    parameter: str
    values: list[int]
    plans: list[Plan]


def parse_sweep(text: str) -> tuple[str, list[int]]:
    """`tokens=2048,4096` as ("tokens", [2048, 4096]); raises `InputError`."""
    parameter, _, listed = text.partition("=")
    if parameter not in PARAMETERS:
        raise InputError(f"--sweep takes {', '.join(PARAMETERS)}=V1,V2,..., got {text!r}")
    try:
        values = [int(value) for value in listed.split(",")]
    except ValueError:
        raise InputError(
            f"--sweep {parameter} needs whole numbers, got {listed!r}; write {parameter}=8,16"
        ) from None
    return parameter, values


def sweep(text: str, arguments: Mapping[str, Any]) -> Sweep:
    """Plan with `arguments` for every value of the parameter in `text`."""
    parameter, values = parse_sweep(text)
    plans = [plan(**{**arguments, PARAMETERS[parameter]: value}) for value in values]
    return Sweep(parameter, values, plans)


def plot(result: Sweep, path: str) -> None:
    """Draw need against the workspace into an image; the file's ending decides the format."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot needs matplotlib: pip install 'ws-guard[plot]'") from None
    order = sorted(range(len(result.values)), key=result.values.__getitem__)
    values = [result.values[index] for index in order]
    plans = [result.plans[index] for index in order]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(values, _gib([p.need_bytes for p in plans]), marker="o", label="need")
    axes.plot(values, _gib([p.workspace_bytes for p in plans]), "--", label="workspace")
    axes.plot(
        values, _gib([p.recommended_workspace_bytes for p in plans]), ":", label="recommended"
    )
    axes.set_xlabel(result.parameter)
    axes.set_ylabel("GiB")
    axes.set_title("Workspace need of the worst step")
    axes.set_ylim(bottom=0)
    axes.legend()
    try:
        if not path:
            raise ValueError("a file name is missing")
        figure.savefig(os.path.expanduser(path))
    except (OSError, ValueError) as error:
        raise InputError(f"--plot {path}: {error}; name a writable .png, .svg or .pdf") from None


def _gib(sizes: Sequence[int]) -> list[float]:
    return [size / (1 << 30) for size in sizes]
