"""The engines' variables that size workspaces, and what a misspelt one may have meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from ws_guard.sizing import InputError

from .releases import ENGINES

#: Likeness from which on a name is taken for a misspelt one: without `BUFFER_` vLLM's is 0.90 like
#: itself, without `SGLANG_` SGLang's 0.88.
_ALIKE = 0.85
#: The engine of each.
VARIABLES = {engine.env: name for name, engine in ENGINES.items()}
#: Constants of the engines' own code, which a log may show: named like variables, and none.
CONSTANTS = frozenset(
    name
    for engine in ENGINES.values()
    for site in engine.sites
    for seen in site.also_seen
    for name in re.findall(r"\b[A-Z][A-Z_]{15,}\b", seen)
) - set(VARIABLES)


def meant_variable(name: str, engine: str | None = None) -> str | None:
    """What to write instead of a variable that no engine reads; None where it is far off.

    With `engine` another engine's variable counts as misspelt: this one does not read it.
    """
    if name in VARIABLES:
        own = engine is None or VARIABLES[name] == engine
        return None if own or engine not in ENGINES else ENGINES[engine].env
    nearest = get_close_matches(name, VARIABLES, n=1, cutoff=_ALIKE)
    if not nearest:
        return None
    return ENGINES[engine].env if engine in ENGINES else nearest[0]


def notes_on_variables(
    engine: str, command: Mapping[str, str], inherited: Mapping[str, str], *, newer: bool
) -> Iterator[str]:
    """Says which variables were not read. `InputError` for a misspelt one of the command.

    As with flags a plan without that size would be wrong; of a release newer than any looked at a
    note will do. So it does of another engine's variable, and of what is `inherited`: it may be
    meant for another command.
    """
    env = ENGINES[engine].env
    if env in command:
        return
    for name in command:
        if name in VARIABLES:
            # An environment that several engines share; this one does not read it.
            told = f"{name} of the launch command is {VARIABLES[name]}'s"
            yield f"ignored: {told}: {engine} reads {env}"
            continue
        meant = meant_variable(name, engine)
        if meant is not None:
            told = f"{name} of the launch command is no variable of {engine}: did you mean {meant}?"
            if not newer:
                raise InputError(told)
            yield f"ignored: {told}"
    if env in inherited:
        return
    for name in inherited:
        if name not in VARIABLES and meant_variable(name, engine) is not None:
            yield f"ignored: {name}, set here, is no variable of {engine}: did you mean {env}?"
