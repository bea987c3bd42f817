"""Runs every public call once on CPU tensors and tells what reached the kernel.

Like the comparison, it runs under any interpreter that has FlashInfer: `python public_calls.py`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from flashinfer_calls import PUBLIC_CALLS, Shape, workspace

from ws_guard.launcher import Recorder, build, installed_flashinfer_root, on_cpu
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES

SM_COUNT = 152
#: All four numbers differ, so that none can stand in for another; dsv4 knows few head counts.
BATCH, HEADS = 24, 32


class Reached(NamedTuple):
    """What the kernel would have been given, beside what the caller asked for."""

    call: str
    asked: tuple[int, int, int, bool, int]
    given: tuple[int, int, int, bool, int]


def cases() -> list[tuple[str, Shape]]:
    """Every call with and without LSE, with one query token and with four where it takes them."""
    return [
        (name, Shape(BATCH, HEADS, q_len, lse))
        for name, call in PUBLIC_CALLS.items()
        for q_len in ((1,) if name == "decode_wrapper" else (1, 4))
        for lse in ((False, True) if call.lse else (False,))
    ]


def reach(name: str, shape: Shape, recorder: Recorder) -> Reached:
    """Run one call within `on_cpu`."""
    before = recorder.last()
    PUBLIC_CALLS[name].build(shape, workspace(DEFAULT_WORKSPACE_BYTES))()
    launch = recorder.last()
    assert launch is not None
    assert launch.ordinal == (before.ordinal if before else 0) + 1
    given = (launch.batch, launch.heads, launch.max_q_len, launch.lse != 0, launch.sm_count)
    return Reached(name, (*shape, SM_COUNT), given)


def reach_all() -> list[Reached]:
    with on_cpu(build(installed_flashinfer_root()), sm_count=SM_COUNT) as recorder:
        return [reach(name, shape, recorder) for name, shape in cases()]


if __name__ == "__main__":
    print(json.dumps([reached._asdict() for reached in reach_all()]))
