"""Keeps torch's compiler out of the probe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any


def hide_from_dynamo(function: Callable[..., Any]) -> None:
    """Let Dynamo call a function as it is, and look into nothing that it calls.

    This is what `torch.compiler.disable` does without its wrapper, which would cost every call more
    than the probe itself. Torch is not imported for it: native modules come after torch.
    """
    # Code that Dynamo traces breaks its graph here instead of inlining the function.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch's mark
    # Frames that run between graphs would be compiled one by one, the function's callees included.
    # A private interface (torch 2.7 to 2.13): without it Dynamo's work is wasted, but not wrong.
    with contextlib.suppress(Exception):
        frames = sys.modules["torch._C._dynamo.eval_frame"]
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)
        frames.set_code_exec_strategy(function.__code__, strategy)
