"""Reads the installed FlashInfer launcher: argument positions, layout facts, verdict."""

from .source import NotInstalledError, installed_release, installed_source, package_root
from .verdict import Contract, Verdict, installed_contract, judge

__all__ = [
    "Contract",
    "NotInstalledError",
    "Verdict",
    "installed_contract",
    "installed_release",
    "installed_source",
    "judge",
    "package_root",
]
