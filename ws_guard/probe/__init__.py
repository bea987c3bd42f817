"""The probe in a worker: native-op wrappers, the loading hook, accounting."""

from .installation import Probe, install, stand_by
from .overflow import WorkspaceOverflowError

__all__ = ["Probe", "WorkspaceOverflowError", "install", "stand_by"]
