"""What the probe makes of the FlashInfer that is installed here."""

from __future__ import annotations

import sys

from ws_guard import contract as contracts
from ws_guard.contract import Contract, NotInstalledError


def judge_installation() -> tuple[Contract | None, str, str]:
    """(contract, verdict, reason); without a contract the probe stays off. Raises nothing."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None, "mismatch", "free-threaded Python loses counts; use a build with the GIL"
    try:
        found = contracts.installed_contract()
    except NotInstalledError as error:
        return None, "not_installed", str(error)
    except Exception as error:  # noqa: BLE001 - an unreadable installation is a mismatch
        return None, "mismatch", f"{type(error).__name__}: {error}"
    return found, found.verdict, found.reason
