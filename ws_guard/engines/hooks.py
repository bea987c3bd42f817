"""Hooks into an engine: before and after its functions, once its modules are there.

None of them can break it: what a hook raises becomes a line in the log.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType

from ws_guard.foreign import Foreign
from ws_guard.probe.loading import PostImport

_MARK = "_ws_guard_hook"


class Hooks:
    """Puts hooks in place; `report` takes a line for each that does not fit."""

    def __init__(self, engine: str, report: Callable[[str], None]) -> None:
        self._engine = engine
        self._report = report

    def when_imported(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        """Call `callback` with a module: now if it is loaded, else once somebody imports it."""
        module = sys.modules.get(name)
        if module is not None:
            self.guarded(name, callback, module)
        else:
            PostImport(name, functools.partial(self.guarded, name, callback)).add()

    def around(
        self,
        owner: Foreign,
        name: str,
        *,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
    ) -> None:
        """Call `before` and `after` with the arguments of each call of `owner.name`.

        Raises AttributeError where the owner has no such function.
        """
        original = getattr(owner, name)
        if getattr(original, _MARK, False):
            return
        what = f"{getattr(original, '__qualname__', name)}"

        @functools.wraps(original)
        def hooked(*args: Foreign, **kwargs: Foreign) -> Foreign:
            if before is not None:
                self.guarded(what, before, *args, **kwargs)
            result = original(*args, **kwargs)
            if after is not None:
                self.guarded(what, after, *args, **kwargs)
            return result

        setattr(hooked, _MARK, True)
        setattr(owner, name, hooked)

    def guarded(
        self, what: str, step: Callable[..., object], *args: Foreign, **kwargs: Foreign
    ) -> None:
        """Do a step of ours; where the engine is not as we know it, say so and leave it alone."""
        try:
            step(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a plugin never breaks its engine
            kind = f"{type(error).__name__}: {error}"
            self._report(
                f"{self._engine} is not as ws_guard knows it ({kind[:120]} at {what}): "
                "calls are accounted for, names and plans may be missing"
            )
