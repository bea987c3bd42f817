"""ws_guard: sizes, watches and guards the workspace of FlashInfer's trtllm-gen attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .version import __version__

if TYPE_CHECKING:
    from .planning import carve, plan
    from .probe import Probe, Provision, WorkspaceOverflowError, install, provision
    from .sizing import Carve, InputError, Plan, Refusal

__all__ = [
    "Carve",
    "InputError",
    "Plan",
    "Probe",
    "Provision",
    "Refusal",
    "WorkspaceOverflowError",
    "__version__",
    "carve",
    "install",
    "plan",
    "provision",
]

# Loaded when asked for: the exporter never loads the probe, nor a worker the planner.
_HOMES = {
    "Carve": "sizing",
    "InputError": "sizing",
    "Plan": "sizing",
    "Probe": "probe",
    "Provision": "probe",
    "Refusal": "sizing",
    "WorkspaceOverflowError": "probe",
    "carve": "planning",
    "install": "probe",
    "plan": "planning",
    "provision": "probe",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
