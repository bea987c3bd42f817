"""The probe: accounts for every native trtllm-gen and XQA call of this process, on the board."""

from .installation import Probe, install, provision, stand_by
from .overflow import WorkspaceOverflowError
from .provision import Provision

__all__ = ["Probe", "Provision", "WorkspaceOverflowError", "install", "provision", "stand_by"]
