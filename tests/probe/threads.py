"""Work in threads of its own, waited for."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def in_threads(
    count: int, target: Callable[[int], object], *, switch_seconds: float | None = None
) -> None:
    """`target(0)` and so on, each in a thread; `switch_seconds` has them take turns that often."""
    threads = [threading.Thread(target=target, args=(number,)) for number in range(count)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(switch_seconds or before)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
