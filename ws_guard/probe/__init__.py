"""The probe in a worker: native-op wrappers, the loading hook, accounting."""

from .installation import Probe, install, stand_by

__all__ = ["Probe", "install", "stand_by"]
