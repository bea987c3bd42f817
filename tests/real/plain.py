"""What a script reports, in the shapes of JSON."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """The same of dicts and lists, a NamedTuple by its field names."""
    if hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value
