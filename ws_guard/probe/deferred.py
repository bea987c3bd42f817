"""The probe for processes that do not know of it: it comes with their first native module.

`ws-guard run` cannot tell a worker by its command. Importing FlashInfer makes none: API servers and
engine cores do that too, and a slot of theirs would count as a worker that never calls. Whoever
loads `fmha_gen` will call it, so the slot opens right before that; an engine's plugin, which knows
more, comes earlier and then stays the only one to attach.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from ws_guard.foreign import Foreign

from .installation import install
from .life import is_installed
from .loading import DOOR, PostImport, is_instrumented
from .saying import say


def wait_for_native_module() -> PostImport:
    """A finder that, asked for FlashInfer's JIT core, has the probe installed when it is needed."""
    return PostImport(DOOR, _wait)


def _wait(core: ModuleType) -> None:
    try:
        _stand_at_the_door(core)
    except Exception as error:  # noqa: BLE001 - called while the engine imports FlashInfer
        say(f"{DOOR} has no JitSpec.build_and_load ({error}): no call is seen")


def _stand_at_the_door(core: ModuleType) -> None:
    spec_class: Any = vars(core)["JitSpec"]
    original = vars(spec_class)["build_and_load"]
    gone = False

    @functools.wraps(original)
    def build_and_load(spec: Foreign, *args: Foreign, **kwargs: Foreign) -> Foreign:
        nonlocal gone
        if not is_instrumented(spec.name):
            return original(spec, *args, **kwargs)
        if vars(spec_class).get("build_and_load") is build_and_load:
            spec_class.build_and_load = original
            gone = True
        if gone:
            # The probe has its own door: this load goes through it.
            _attach()
            return spec_class.build_and_load(spec, *args, **kwargs)
        # Somebody has patched over us: what is loaded now the probe finds by itself.
        module = original(spec, *args, **kwargs)
        _attach()
        return module

    spec_class.build_and_load = build_and_load


def _attach() -> None:
    try:
        if not is_installed():
            install(rank=_rank())
    except Exception as error:  # noqa: BLE001 - the probe never harms the engine
        say(f"not attached: {type(error).__name__}: {error}")


def _rank() -> str | None:
    """Which of its parent's processes a multiprocessing child is, where no launcher tells.

    Workers of one script would otherwise all be rank 0, and each would take the other's place.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or "LOCAL_RANK" in os.environ:
        return None
    identity = getattr(multiprocessing.current_process(), "_identity", ())
    return str(identity[-1] - 1) if identity else None
