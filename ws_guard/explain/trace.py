"""What the traceback above a fault tells: engine sites on its way, and who allocates at its end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ws_guard.engines.releases import ENGINES

_NAME = r"(\w*workspace_buffer\w*|_fi_\w*workspace|\w*trtllm\w*workspace)"
#: Code of the engines that allocates a workspace for FlashInfer: a function of that name, its call,
#: or an assignment. A buffer that is handed on as an argument is not being allocated.
_ALLOCATES = re.compile(rf", in {_NAME}$|\b{_NAME}\(|\b{_NAME} = ", re.MULTILINE)
_FRAME = 'File "'
_ENGINE_FRAME = re.compile(rf'File \\?"[^"\n]{{0,300}}/({"|".join(ENGINES)})/[^"\n]{{1,300}}"')
#: torch's own frames stand between the code that asks and the error.
_TORCH = "/torch/"
_LINES_WITHOUT_FRAME = 2
#: Lines from the innermost frame to its error: marked code of several lines, and torch's frames.
_LINES_OF_FRAME = 12


def sites_in(trace: str) -> Iterator[str]:
    """Engine sites whose code a traceback passes through.

    Where it shows no call, as one that was cut does, those of the file nearest to the error.
    """
    sites = [site for engine in ENGINES.values() for site in engine.sites]
    called = [
        site
        for site in sites
        if f"/{site.source.rpartition('/')[2]}" in trace and site.called in trace
    ]
    last = max((trace.rfind(f"/{site.source}") for site in sites), default=-1)
    nearest = [site for site in sites if last >= 0 and trace.startswith(f"/{site.source}", last)]
    yield from (site.workspace for site in called or nearest)


def engine_in(trace: str) -> str | None:
    """The engine of the innermost frame of a traceback that is an engine's."""
    frames = list(_ENGINE_FRAME.finditer(trace))
    return frames[-1][1] if frames else None


def allocating(above: Sequence[str]) -> str:
    """The workspace code that the lines above an error end in; empty where they do not.

    Only the innermost frame counts: every frame of an attention call has workspaces on it.
    """
    last = [text for text in above if text.strip()][-_LINES_OF_FRAME:]
    frames = [at for at, text in enumerate(last) if _FRAME in text and _TORCH not in text]
    lines = last[frames[-1] :] if frames else last[-_LINES_WITHOUT_FRAME:]
    match = _ALLOCATES.search("\n".join(lines))
    return next(filter(None, match.groups()), "") if match else ""
