"""ws_guard: sizes, watches and guards the workspace of FlashInfer's trtllm-gen attention."""

from .planning import carve, plan
from .probe import Probe, install
from .sizing import Carve, InputError, Plan, Refusal

__all__ = ["Carve", "InputError", "Plan", "Probe", "Refusal", "carve", "install", "plan"]
__version__ = "0.1.0"
