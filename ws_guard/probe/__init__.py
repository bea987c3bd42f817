"""The probe: accounts for every native trtllm-gen and XQA call of this process, on the board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .installation import install, provision, stand_by
from .life import Probe
from .overflow import WorkspaceOverflowError

if TYPE_CHECKING:
    from .provisions import Provision

__all__ = ["Probe", "Provision", "WorkspaceOverflowError", "install", "provision", "stand_by"]


def __getattr__(name: str) -> object:
    # With all that goes on at a native call: an import need not wait for it.
    if name == "Provision":
        from .provisions import Provision

        return Provision
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
