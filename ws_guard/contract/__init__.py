"""Reads the installed FlashInfer launcher: argument positions, layout facts, verdict."""

from .source import NotInstalledError, installed_release, installed_source, package_root
from .verdict import Contract, Verdict, installed_contract, judge
from .xqa import XQA_SPEC_PREFIX, XqaContract, installed_xqa, judge_xqa

__all__ = [
    "XQA_SPEC_PREFIX",
    "Contract",
    "NotInstalledError",
    "Verdict",
    "XqaContract",
    "installed_contract",
    "installed_release",
    "installed_source",
    "installed_xqa",
    "judge",
    "judge_xqa",
    "package_root",
]
