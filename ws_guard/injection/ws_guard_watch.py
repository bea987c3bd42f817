"""Waits, in any Python process, for FlashInfer; until then it costs next to nothing.

Loaded by `sitecustomize` at the start of every process: only what the interpreter has loaded by
itself may be imported here. Everything else comes when FlashInfer comes, or never.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

#: `ws_guard.probe.loading.DOOR`. FlashInfer's other modules are looked for by processes that will
#: never use it; even that one tells no worker yet, see `ws_guard.probe.deferred`.
_DOOR = "flashinfer.jit.core"


def start(home: str) -> None:
    """Wait for FlashInfer. `home` is the directory that ws_guard stands in."""
    sys.meta_path.insert(0, Watch())
    sys.meta_path.append(Lender(home))


class Watch:
    """A finder that finds nothing, and lets the probe see FlashInfer's loading."""

    def __init__(self) -> None:
        self._searching = False

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002 - the finder protocol
        target: object = None,  # noqa: ARG002 - the finder protocol
    ) -> "ModuleSpec | None":
        """None, except for the module that the probe waits for."""
        if fullname != _DOOR or self._searching:
            return None
        self._searching = True
        try:
            from ws_guard.probe.deferred import wait_for_native_module

            return wait_for_native_module().find_spec(fullname)
        except Exception as error:  # noqa: BLE001 - FlashInfer's import must not suffer
            _say(f"this process is not watched: {type(error).__name__}: {error}")
            return None
        finally:
            self._searching = False


class Lender:
    """Lends ws_guard to an interpreter that has none of its own: the last finder to be asked."""

    def __init__(self, home: str) -> None:
        self._package = os.path.join(home, "ws_guard")

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002 - the finder protocol
        target: object = None,  # noqa: ARG002 - the finder protocol
    ) -> "ModuleSpec | None":
        """The spec of `ws_guard` and of nothing else."""
        if fullname != "ws_guard":
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(
            fullname,
            os.path.join(self._package, "__init__.py"),
            submodule_search_locations=[self._package],
        )


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"ws_guard[{os.getpid()}]: {text}\n")
    except Exception:  # noqa: BLE001 - nobody listens
        pass
