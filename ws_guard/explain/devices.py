"""SMs of GPUs by the names that logs tell, as NVIDIA publishes them. Data."""

from __future__ import annotations

import re

from ws_guard.sizing.releases import SM_COUNTS

#: Names as drivers write them; the full chip of a product line where several are sold.
SMS_BY_NAME: dict[str, int] = {
    **{name.upper(): count for name, count in SM_COUNTS.items()},
    "GB10": 48,
    "GH200": 132,
    "H200": 132,
    "H100": 132,
    "H20": 78,
    "A100": 108,
    "A40": 84,
    "L40S": 142,
    "L40": 142,
    "L20": 92,
    "RTX 5090": 170,
    "RTX 4090": 128,
    "RTX 3090": 82,
    "RTX A6000": 84,
    "RTX PRO 6000": 188,
    "RTX 2080 Ti": 68,
}

NEEDLES: tuple[bytes, ...] = tuple(name.encode() for name in SMS_BY_NAME)
_NAME = re.compile(
    r"(?<![\w-])("
    + "|".join(sorted(map(re.escape, SMS_BY_NAME), key=len, reverse=True))
    + r")(?![\w])"
)


def gpu_in(text: str) -> str | None:
    """The GPU that a text names."""
    match = _NAME.search(text)
    return match[1] if match else None
